/* SPDX-License-Identifier: MIT
 *
 * redis.h: what the files of the redis engine share. redis.c opens with how it works.
 */
#ifndef HFI_REDIS_H
#define HFI_REDIS_H

#include "engine.h"
#include <hiredis/hiredis.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

/* How long a lock that was handed to a waiter stays its own unless the waiter confirms it. The scripts know it too. */
#define HFI_REDIS_CLAIM_MS 2000
#define HFI_REDIS_KEY_MAX (HFI_NAME_MAX + 80)

/* --- redis_url.c --- */

struct redis_config {
    bool tls;
    char *host; /* or the path of a Unix socket, if port is "" */
    char *port;
    char *user, *password; /* "" if there is none */
    int database;
    char *prefix;
    hfi_time connect_ns, timeout_ns; /* for one connection, for one exchange; 0: the request's own deadline */
    int replicas;                    /* 0: do not wait for any */
    int replica_ms;
    bool fsync;                           /* WAITAOF instead of WAIT */
    char *ca_file, *cert_file, *key_file; /* NULL: the system's, none, none */
    bool verify;
};

hf_status hfi_redis_config_read(struct redis_config *config, const struct hfi_url *url, hf_error *err);
void hfi_redis_config_free(struct redis_config *config);

/* --- redis_connection.c --- */

struct redis_connection {
    struct redis_connection *next; /* in the store's list of idle ones */
    int fd;
    SSL *tls;
    redisReader *reader;
    redisReplyObjectFunctions functions; /* the reader's, with a limit */
    hfi_time used_ns;
    hfi_time receive_ns; /* what SO_RCVTIMEO is set to */
};

#define HFI_REDIS_ARGS_MOST 400

struct redis_command {
    int count;
    const char *text[HFI_REDIS_ARGS_MOST];
    size_t length[HFI_REDIS_ARGS_MOST];
};

void hfi_redis_add(struct redis_command *command, const char *text);

/* Connects, logs in and selects the database. */
hf_status hfi_redis_connect(struct redis_connection **out, const struct redis_config *config, SSL_CTX *tls,
                            hfi_time deadline_ns, hf_error *err);
void hfi_redis_disconnect(struct redis_connection *connection);
/* True if the connection, idle so far, still stands. */
bool hfi_redis_is_alive(const struct redis_connection *connection);
/* Sends commands in one write. HF_UNKNOWN: part of it may have been sent. */
hf_status hfi_redis_send(struct redis_connection *connection, const struct redis_command *const *commands, size_t count,
                         hfi_time deadline_ns, hf_error *err);
/* The next reply; *out is freed by freeReplyObject(). HF_TIMEOUT: none by the deadline. HF_UNKNOWN: the connection is
 * of no use any more. Replies that are errors come back as HF_OK. */
hf_status hfi_redis_receive(struct redis_connection *connection, redisReply **out, hfi_time deadline_ns, hf_error *err);
/* The same in two steps that never wait: reads what is there, and takes the next whole reply out of it, NULL if there
 * is none. HF_UNKNOWN: the connection is of no use any more. */
hf_status hfi_redis_fetch(struct redis_connection *connection);
hf_status hfi_redis_fetched(struct redis_connection *connection, redisReply **out);
hf_status hfi_redis_tls_new(SSL_CTX **out, const struct redis_config *config, hf_error *err);

/* --- redis_answer.c --- */

/* What an error reply means that concerns `key`, which may be "". NULL: the answer to AUTH, whose words are not shown,
 * since a server without that command repeats its arguments. */
hf_status hfi_redis_refusal(const redisReply *reply, const char *key, hf_error *err);
bool hfi_redis_is_error(const redisReply *reply, const char *code);

/* --- redis_script.c --- */

struct redis_script {
    const char *text;
    char hash[41];
};

struct redis_scripts {
    struct redis_script acquire, release, renew, evict, look;
};

void hfi_redis_scripts_init(struct redis_scripts *scripts);

/* --- redis_store.c --- */

struct redis_lock;

struct redis_store {
    const struct hfi_env *env;
    struct redis_config config;
    struct redis_scripts scripts;
    SSL_CTX *tls;
    char who[96]; /* "host pid" */

    pthread_mutex_t mutex;
    struct redis_connection *idle;
    size_t idle_count;

    /* redis_subscription.c */
    struct redis_connection *ear;
    uint64_t ear_number;        /* grows with every new subscription: what came in between was missed */
    bool on_duty;               /* some waiting thread listens for all */
    struct redis_lock *waiting; /* those that a gift may come for */
};

enum redis_state {
    REDIS_NEW,   /* not held, as far as we know; may stand in the queue */
    REDIS_GIVEN, /* somebody handed it to us */
    REDIS_HELD
};

struct redis_lock {
    enum redis_state state; /* becomes REDIS_GIVEN under the store's mutex, at any time while `expected` */
    bool queued;            /* it stands in the queue, as far as we know */
    bool unsure;            /* an answer was lost: the server may know of it */
    uint64_t ear_number;    /* of the subscription that it lined up under */
    struct hfi_owner owner;
    hfi_time ask_again_ns; /* the backstop */
    /* what ties the server's clock to ours: a request that was sent at sent_ns was answered with server_us */
    hfi_time sent_ns;
    int64_t server_us;
    /* the gift */
    uint64_t token;
    int64_t given_us;
    bool expected;           /* in store->waiting */
    struct hfi_waker *waker; /* while its thread sleeps */
    struct redis_lock *next;
};

/* One exchange: a script and, in the same write, perhaps a command behind it. */
struct redis_question {
    const struct redis_script *script;
    const struct redis_command *arguments; /* the script's */
    const struct redis_command *behind;    /* NULL: none */
    hfi_time deadline_ns;
    hfi_time sent_ns; /* set: when it was sent */
};

/* Asks on an idle connection; the script goes by its hash, and again with its text if the server does not know it. On
 * HF_OK all replies are there, errors among them, and each must be freed. HF_UNKNOWN: sent, but not answered. */
hf_status hfi_redis_ask(struct redis_store *store, struct redis_question *question, redisReply **replies,
                        hf_error *err);
hf_status hfi_redis_borrow(struct redis_store *store, struct redis_connection **out, hfi_time deadline_ns,
                           hf_error *err);
void hfi_redis_give_back(struct redis_store *store, struct redis_connection *connection);
void hfi_redis_keys(char *key, char *queue, const struct redis_store *store, const char *name);
/* The owner as the server knows it, and what is shown of it: "host pid note". */
void hfi_redis_owner(char out[40], struct hfi_owner owner);

/* --- redis_subscription.c --- */

/* Makes sure that gifts can reach us. *number: of the subscription. */
hf_status hfi_redis_subscribe(struct redis_store *store, uint64_t *number, hfi_time deadline_ns, hf_error *err);
/* Before the server is asked for a place in the queue: a gift for `lock` may come at any time from then on, even before
 * the answer. False: nobody listens, so no place must be asked for. */
bool hfi_redis_expect(struct redis_store *store, struct redis_lock *lock, struct hfi_owner owner);
/* No gift is of interest any more; sets the lock's state. */
void hfi_redis_expect_no_more(struct redis_store *store, struct redis_lock *lock, enum redis_state state);
/* Sleeps until `lock` was given to us, the subscription broke, the waker was woken (true), or the deadline came
 * (false). */
bool hfi_redis_listen(struct redis_store *store, struct redis_lock *lock, struct hfi_waker *waker,
                      hfi_time deadline_ns);

/* --- redis_look.c --- */

hf_status hfi_redis_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err);
hf_status hfi_redis_evict(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);

#endif
