/* SPDX-License-Identifier: MIT
 *
 * etcd.h: what the files of the etcd engine share. etcd.c opens with how it works.
 *
 *   etcd.c             the engine: what the core asks for
 *   etcd_txn.c         the transactions, and what their answers say
 *   etcd_lease.c       leases: granting and sharing; etcd_renew.c: keeping what is held
 *   etcd_push.c         the connection that hears: watches and the keep-alives; etcd_watch.c: who watches what;
 *                      etcd_errand.c: what is done on the side
 *   etcd_look.c        who holds what; etcd_done.c: what is done
 *   etcd_doctor.c      what in the way the cluster is set up could lose a lock
 *   etcd_ask.c         one exchange, with whichever server answers; etcd_answer.c: what a refusal means
 *   etcd_login.c       the token of the log-in
 *   etcd_wire.c        the connection to a server that all threads share; etcd_node.c: the servers
 *   etcd_connect.c     socket and TLS; etcd_connection.c: gRPC calls on HTTP/2
 *   etcd_url.c
 *   etcd.proto         the messages
 */
#ifndef HFI_ETCD_H
#define HFI_ETCD_H

#include "engine.h"
#include "engines/dial.h"
#include "engines/push.h"
#include "etcd.pb-c.h"
#include "loop/loop.h"
#include <nghttp2/nghttp2.h>
#include <openssl/ssl.h>
#include <pthread.h>

#define HFI_ETCD_PREFIX_MAX 64
#define HFI_ETCD_HOSTS_MOST 32
/* P, '/', the encoded name, '/', a lease in hexadecimal. */
#define HFI_ETCD_KEY_MAX (HFI_ETCD_PREFIX_MAX + 1 + 8 + HFI_NAME_ENCODED_MAX + 1 + 16)
#define HFI_ETCD_VALUE_MAX 256
#define HFI_ETCD_WHO_MAX 96

struct etcd_store;
struct etcd_lock;

/* --- etcd_url.c --- */

struct etcd_address {
    char host[256];
    char port[8];
};

struct etcd_config {
    struct etcd_address *addresses;
    size_t address_count;
    char *user, *password; /* "" if there is none */
    char *prefix;          /* without the '/' at its end */
    hfi_time timeout_ns;   /* for one exchange; 0: the request's own deadline */
    bool tls, verify;
    char *ca_file, *cert_file, *key_file; /* NULL: the system's, none, none */
};

hf_status hfi_etcd_config_read(struct etcd_config *config, const struct hfi_url *url, hf_error *err);
void hfi_etcd_config_free(struct etcd_config *config);

/* --- etcd_connection.c --- */

/* One call on a connection. It must stay where it is until it is over or the connection is closed. */
struct etcd_stream {
    const char *path; /* "/etcdserverpb.KV/Txn" */
    bool stays_open;  /* more messages may follow in both directions */
    int32_t id;       /* 0: not begun */
    struct hfi_bytes out, in;
    size_t sent; /* of `out` */
    bool closed;
    bool untouched;   /* the server has done nothing, and will not */
    int http;         /* the status, 0: none came */
    int code;         /* grpc-status, -1: none came */
    char reason[120]; /* grpc-message */
    struct etcd_asking *asking;
};

enum etcd_phase { ETCD_CONNECTING, ETCD_SHAKING_HANDS, ETCD_READY };

struct etcd_connection {
    int fd;
    SSL *tls;
    nghttp2_session *session;
    enum etcd_phase phase;
    struct hfi_dial dial;
    short wants;            /* what poll() is to wait for before the next step */
    struct hfi_bytes clear; /* with TLS: what is to be encrypted */
    struct hfi_bytes out;   /* what the socket had no room for */
    bool leaving;           /* the server takes no new calls on it */
    bool pinged;            /* it wants to hear this back; it asks so with each call, to see how fast the network is */
    uint8_t ping[8];
    /* NULL, or is called when a stream is over. */
    void (*over)(struct etcd_stream *stream);
};

void hfi_etcd_stream_free(struct etcd_stream *stream);

bool hfi_etcd_session_new(struct etcd_connection *connection);
/* Adds a message to what the stream is going to send; false: no memory. */
bool hfi_etcd_add_message(struct etcd_stream *stream, const ProtobufCMessage *message);
/* Takes the next whole message out of what has come. *out is NULL if there is none; false: it is nonsense. */
bool hfi_etcd_take_message(struct etcd_stream *stream, const ProtobufCMessageDescriptor *type, ProtobufCMessage **out);
/* Begins the call; nothing is sent before hfi_etcd_flush(). timeout_ns 0: none. False: no memory, or no more calls on
 * this connection. */
bool hfi_etcd_begin(struct etcd_connection *connection, struct etcd_stream *stream, const char *authority,
                    const char *token, hfi_time timeout_ns);
/* After messages were added to a stream that stays open. */
void hfi_etcd_resume(struct etcd_connection *connection, const struct etcd_stream *stream);
/* There is something to be sent; adds it to `out`, encrypted if need be; and takes what was received. False: the
 * connection is of no use any more. */
bool hfi_etcd_has_frames(const struct etcd_connection *connection);
bool hfi_etcd_make_frames(struct etcd_connection *connection, struct hfi_bytes *out);
bool hfi_etcd_feed(struct etcd_connection *connection, const void *bytes, size_t length);
/* The same with the socket, without waiting. */
bool hfi_etcd_flush(struct etcd_connection *connection);
bool hfi_etcd_fetch(struct etcd_connection *connection);

/* --- etcd_connect.c --- */

hf_status hfi_etcd_tls_new(SSL_CTX **out, const struct etcd_config *config, hf_error *err);
/* In steps that never wait. HF_TIMEOUT: not yet; go on when connection->wants is there. `alone`: see dial.h. */
hf_status hfi_etcd_connect_begin(struct etcd_connection **out, const struct etcd_address *address, bool alone,
                                 hf_error *err);
hf_status hfi_etcd_connect_step(struct etcd_connection *connection, const struct etcd_address *address, SSL_CTX *tls,
                                hf_error *err);
/* The sentence and the status of one that is not ready in time. */
hf_status hfi_etcd_connect_late(const struct etcd_connection *connection, const struct etcd_address *address,
                                hf_error *err);
void hfi_etcd_disconnect(struct etcd_connection *connection);

/* --- etcd_node.c --- */

/* A server. */
struct etcd_node {
    const struct etcd_address *address;
    char authority[300]; /* "host:port" */
    /* With the loop's mutex: the connection that all share, and one for renewals that must not wait for others. NULL:
     * there is none. */
    struct etcd_wire *wire, *apart;
};

hf_status hfi_etcd_nodes_new(struct etcd_store *store, hf_error *err);
void hfi_etcd_nodes_free(struct etcd_store *store);

/* --- etcd_answer.c --- */

/* What a call came to. `writes`: it may have changed something though it failed. */
hf_status hfi_etcd_outcome(const struct etcd_stream *stream, bool writes, hf_error *err);
/* The server refuses the token: it is too old, or the server has forgotten it. */
bool hfi_etcd_is_stale_token(const struct etcd_stream *stream);
bool hfi_etcd_is_lease_missing(const struct etcd_stream *stream);
bool hfi_etcd_is_lease_there(const struct etcd_stream *stream);
bool hfi_etcd_is_too_many(const struct etcd_stream *stream);
bool hfi_etcd_is_full(const struct etcd_stream *stream);

/* --- etcd_ask.c --- */

struct etcd_call {
    const char *path;
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *type; /* of the answer */
    bool optional;                          /* others are of use though this one failed */
    ProtobufCMessage *answer;               /* after HF_OK; NULL if it is optional and failed */
    struct etcd_stream stream;
};

/* Calls that go out in one write, and can all be repeated without harm. */
struct etcd_question {
    struct etcd_call *calls;
    size_t count;
    bool writes;
    bool renews; /* it must not wait behind anything else */
    hfi_time deadline_ns;
    hfi_time sent_ns;   /* set: when what was answered was sent */
    uint64_t login;     /* set: after which log-in */
    bool unsure;        /* set: what a server that did not answer was asked may have been done, or be done yet */
    bool lease_missing; /* set: there is no such lease */
    bool lease_there;   /* set: there is such a lease, which was asked for once before */
    bool too_many;      /* set: the server takes fewer operations in one transaction */
    bool full;          /* set: the server has no room, and may have done what has used it up */
};

/* HF_OK: all calls were answered. */
hf_status hfi_etcd_ask(struct etcd_store *store, struct etcd_question *question, hf_error *err);
/* The same of one server, the one of the URL with this number, and no other. */
hf_status hfi_etcd_ask_server(struct etcd_store *store, size_t index, struct etcd_question *question, hf_error *err);
void hfi_etcd_answers_free(struct etcd_question *question);

/* --- etcd_login.c: with the mutex, except where said --- */

bool hfi_etcd_needs_login(const struct etcd_store *store);
/* The token to send along, or NULL. */
const char *hfi_etcd_token(const struct etcd_store *store);
/* A server refused the token of this log-in (see store->logins): the next who needs one logs in. */
void hfi_etcd_login_refused(struct etcd_store *store, uint64_t login);
/* The call that asks for a token; with the mutex or without. False: no memory. */
bool hfi_etcd_login_prepare(const struct etcd_store *store, struct etcd_stream *stream);
/* Keeps what was answered. False: that was no token. */
bool hfi_etcd_login_take(struct etcd_store *store, struct etcd_stream *stream);

/* --- etcd_txn.c --- */

/* What an answer says about a lock. */
struct etcd_view {
    bool placed;          /* the own key is there */
    bool first;           /* nobody came before it */
    int64_t own_revision; /* in which the own key was made */
    int64_t revision;     /* of the store, when it was looked at */
    char *before;         /* the key that comes right before the own one; NULL: not known, or none */
    size_t before_length;
    char holder[160];   /* "host:pid", "" if not known */
    bool done;          /* there is a mark that its work is done: of `holder`, "host:pid note" */
    int64_t done_lease; /* … that ends with this lease; 0: with none */
};

void hfi_etcd_view_free(struct etcd_view *view);
/* "P/NAME/", and with a lease the own key. */
size_t hfi_etcd_key(char out[HFI_ETCD_KEY_MAX + 1], const struct etcd_store *store, const char *name, int64_t lease);
/* Takes the lock if nobody has it, and leaves nothing behind if somebody does. */
hf_status hfi_etcd_ask_if_free(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                               struct etcd_view *view, hf_error *err);
/* Lines up, and takes the lock if nobody has it. */
hf_status hfi_etcd_ask_to_line_up(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                  struct etcd_view *view, hf_error *err);
/* Reads again: whether the own key is still there, and who is before it. */
hf_status hfi_etcd_ask_whose_turn(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                  struct etcd_view *view, hf_error *err);
/* HF_OK: deleted, or was never there; and what was asked for it before does nothing any more, however late it arrives.
 * HF_LOST: it was gone. */
hf_status hfi_etcd_ask_to_delete(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                 hf_error *err);
/* The same, and leaves a mark in the same step, that ends with lock->done_lease. HF_OK also if this was done before. */
hf_status hfi_etcd_ask_to_finish(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                                 hf_error *err);
/* What is said of a contender in its key: "host pid note", or "host pid:token note" if there is a token to be told. Its
 * length. */
size_t hfi_etcd_value(char out[HFI_ETCD_VALUE_MAX], const struct etcd_store *store, int64_t token, const char *note);
/* The same as "host:pid". */
void hfi_etcd_say_who(char out[160], const ProtobufCBinaryData *value);

/* --- etcd_lease.c --- */

enum etcd_lease_state {
    ETCD_LEASE_ASKED, /* somebody is asking for it */
    ETCD_LEASE_ALIVE,
    ETCD_LEASE_GONE
};

/* Shared by all locks of a client with the same time-to-live, one of each name: the key is made of name and lease. */
struct etcd_lease {
    struct etcd_lease *next;
    enum etcd_lease_state state;
    int64_t id;
    uint32_t ttl_ms;
    hfi_time length_ns;  /* what the server gave, from every answer on */
    hfi_time counted_ns; /* it lasts from then on, or from later: when a request was sent that surely counted */
    hfi_time kept_ns;    /* when the last request was sent that was answered, by whichever server */
    hfi_time asked_ns;   /* when the push connection asked to keep it; 0: there is no answer to come */
    hfi_time used_ns;    /* when a lock last came or went */
    unsigned users;
    unsigned refused;    /* … of which the server does not let go: it is not kept for them */
    hfi_time revoked_ns; /* when that was asked for; 0: it was not */
    bool retired;        /* no lock is to come any more */
};

/* Gives the lock a lease on which no other lock has its name. */
hf_status hfi_etcd_lease_take(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                              hf_error *err);
/* The lock has no key any more. */
void hfi_etcd_lease_drop(struct etcd_store *store, struct etcd_lock *lock);
/* The server does not let its key be deleted: the lease is revoked as soon as no other lock needs it. */
void hfi_etcd_lease_refuse(struct etcd_store *store, struct etcd_lock *lock);
/* The lease is known to have ended: whoever holds by it has lost. Whoever calls this tells the losses later. */
void hfi_etcd_lease_gone(struct etcd_store *store, struct etcd_lease *lease);
bool hfi_etcd_lease_has_ended(struct etcd_store *store, const struct etcd_lease *lease);
/* Whether a request for `ttl_ms` should ask to keep the lease too; and what the answer came to: whether it counts. The
 * first call of the question is a transaction, that at `index` asked to keep the lease. */
bool hfi_etcd_lease_is_stale(struct etcd_store *store, const struct etcd_lease *lease, uint32_t ttl_ms);
bool hfi_etcd_lease_kept(struct etcd_store *store, struct etcd_lease *lease, const struct etcd_question *question,
                         size_t index);
/* From when a time-to-live of `ttl_ms` counts; *valid_ms is less if the lease is shorter, else 0. */
hfi_time hfi_etcd_lease_counts_from(struct etcd_store *store, const struct etcd_lease *lease, uint32_t ttl_ms,
                                    hfi_time now_ns, uint32_t *valid_ms);
/* The lease of a lock that is held, so that it cannot go meanwhile, and in which revision its key was made; NULL: it is
 * lost, or was released by another thread. */
struct etcd_lease *hfi_etcd_lease_use(struct etcd_store *store, const struct etcd_lock *lock, int64_t *own_revision);
void hfi_etcd_lease_unuse(struct etcd_store *store, struct etcd_lease *lease);
/* The number of the lease by which a lock was held, and in which revision its key was made; 0: it was released by
 * another thread, or the lease has ended. */
int64_t hfi_etcd_lease_alive(struct etcd_store *store, const struct etcd_lock *lock, int64_t *own_revision);
/* Of leases that may have ended; whether or not they are there afterwards, they end by themselves. */
#define HFI_ETCD_REVOKE_MOST 32
void hfi_etcd_leases_revoke(struct etcd_store *store, const int64_t *ids, size_t count, hfi_time deadline_ns);
/* Gives all of them back. */
void hfi_etcd_leases_close(struct etcd_store *store);
/* With the mutex. */
void hfi_etcd_lease_mark_gone(struct etcd_store *store, struct etcd_lease *lease);
void hfi_etcd_leases_tidy(struct etcd_store *store, hfi_time now_ns);
void hfi_etcd_lease_forget(struct etcd_store *store, struct etcd_lease *lease);

/* --- etcd_renew.c --- */

hf_status hfi_etcd_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns, hf_error *err);

/* --- etcd_push.c, etcd_watch.c: with the mutex, except where said --- */

enum etcd_push_state { ETCD_PUSH_NONE, ETCD_PUSH_CONNECTING, ETCD_PUSH_LOGGING_IN, ETCD_PUSH_READY };

struct etcd_push {
    int epoll, timer; /* what the keeper listens to: the socket and the timer */
    hfi_time armed_ns;
    enum etcd_push_state state;
    struct etcd_connection *connection;
    struct etcd_node *node;
    struct etcd_stream login, watch, keep;
    uint64_t logged_in;          /* by which log-in the streams were opened */
    struct etcd_errand *errands; /* calls that nobody waits for */
    unsigned failures;           /* to connect, in a row */
    hfi_time since_ns;           /* when it began to connect */
    hfi_time try_again_ns;       /* when there is none */
    size_t next_node;
    int64_t last_watch;
    bool refused;           /* a call was, for its token: the connection is of no use */
    struct hfi_push shared; /* by those that have, or want, a watch, by its number; some of them wait */
    bool losses;            /* some lock is lost, and its holder is still to be told */
};

hf_status hfi_etcd_push_open(struct etcd_store *store, hf_error *err);
void hfi_etcd_push_close(struct etcd_store *store);
/* Does all there is to do, and never waits. */
void hfi_etcd_push_pump(struct etcd_store *store);
/* Has it pumped at `due_ns` at the latest. */
void hfi_etcd_push_expect(struct etcd_store *store, hfi_time due_ns);
/* Sends a message on a stream that stays open. */
void hfi_etcd_push_say(struct etcd_store *store, struct etcd_stream *stream, const ProtobufCMessage *message);
/* There is a new token: its streams still have the old one. */
void hfi_etcd_push_outdated(struct etcd_store *store);
/* Revokes leases that nobody needs, when it is time; when it is so next. */
hfi_time hfi_etcd_errands_send(struct etcd_store *store, hfi_time now_ns);
void hfi_etcd_errands_take(struct etcd_store *store);
/* Writes the token of a lock that is held into its key. */
void hfi_etcd_errand_tell(struct etcd_store *store, const struct etcd_lock *lock);
void hfi_etcd_errands_free(struct etcd_push *push);
/* Without the mutex: has the core ask about all locks, if some are known to be lost. */
void hfi_etcd_tell_losses(struct etcd_store *store);
void hfi_etcd_take_push(void *memory);

/* Watches `key` for its deletion, from `at_ns` on. */
void hfi_etcd_watch(struct etcd_store *store, struct etcd_lock *lock, char *key, size_t length, int64_t from_revision,
                    hfi_time at_ns);
void hfi_etcd_unwatch(struct etcd_store *store, struct etcd_lock *lock);
/* When it is to ask by itself, after an answer. */
void hfi_etcd_plan_backstop(const struct etcd_store *store, struct etcd_lock *lock);
/* Sends what is due of watches; when the next is. */
hfi_time hfi_etcd_watches_send(struct etcd_store *store, hfi_time now_ns);
void hfi_etcd_watches_open(struct etcd_store *store);
void hfi_etcd_watches_broken(struct etcd_store *store);
void hfi_etcd_watch_take(struct etcd_store *store, const Etcd__WatchResponse *response);
/* As the engine's wait(), without the mutex. */
hf_status hfi_etcd_await_turn(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request);

/* --- etcd_look.c --- */

/* What a value says: see hfi_etcd_value(). */
struct etcd_person {
    char host[65]; /* "": it is another program's */
    long long pid;
    unsigned long long token; /* 0: not told */
    char note[HFI_ETCD_VALUE_MAX];
};

void hfi_etcd_read_person(struct etcd_person *person, const ProtobufCBinaryData *value);
/* Reads all keys that start with `start`. */
hf_status hfi_etcd_read_keys(struct etcd_store *store, const char *start, struct etcd_call *call, hfi_time deadline_ns,
                             hf_error *err);
/* Where the holder of `name` by this lease finds the revision in which its key was made and who has broken it:
 * "17 user@host:4711". Its length. */
size_t hfi_etcd_broken_key(char out[HFI_ETCD_KEY_MAX + 1], const struct etcd_store *store, const char *name,
                           int64_t lease);
/* Deletes the key if it is still the one that was seen, and puts `note`, unless it is NULL, in the same step; if the
 * server has no room for that, or does not let us, it does without. */
hf_status hfi_etcd_delete_key(struct etcd_store *store, const Etcd__KeyValue *one, Etcd__PutRequest *note,
                              hfi_time deadline_ns, hf_error *err);

hf_status hfi_etcd_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                           hf_error *err);
hf_status hfi_etcd_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err);
hf_status hfi_etcd_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);

/* --- etcd_done.c --- */

/* The key of the mark that the work of `name` is done. Its length. */
size_t hfi_etcd_done_key(char out[HFI_ETCD_KEY_MAX + 1], const struct etcd_store *store, const char *name);
/* For how long the mark that was seen still counts, and how long ago it was made, as far as the server says. */
void hfi_etcd_say_done(struct etcd_store *store, const struct etcd_view *view, struct hfi_grant *grant,
                       hfi_time deadline_ns);
/* Gives the lock back, and leaves a mark for request->done_ms if it was held until now. */
hf_status hfi_etcd_finish(struct etcd_store *store, struct etcd_lock *lock, const struct hfi_request *request,
                          hf_error *err);
hf_status hfi_etcd_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err);
hf_status hfi_etcd_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);

/* --- etcd_doctor.c --- */

hf_status hfi_etcd_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                           hf_error *err);

/* --- all of it --- */

#define HFI_ETCD_BUCKETS 256

struct etcd_store {
    const struct hfi_env *env;
    struct etcd_config config;
    SSL_CTX *tls;               /* NULL: no TLS */
    char who[HFI_ETCD_WHO_MAX]; /* "host pid" */
    struct etcd_node *nodes;
    struct hfi_loop loop; /* of the shared connections */

    pthread_mutex_t mutex; /* guards all that follows */
    size_t current;        /* the node that answered last */
    bool answers;          /* the last exchange was answered */
    char *token;           /* NULL: none; "": none is wanted */
    uint64_t logins;       /* how many there were */
    pthread_cond_t granted;
    struct etcd_lease *leases;
    size_t together;                           /* so many locks are renewed in one transaction */
    struct etcd_lock *locks[HFI_ETCD_BUCKETS]; /* those that have a lease, by name */
    struct etcd_push push;
};

enum etcd_place {
    ETCD_NOWHERE, /* there is no key */
    ETCD_UNSURE,  /* a request to make one was not answered */
    ETCD_PLACED,  /* the key is there, and others before it */
    ETCD_HELD
};

struct etcd_lock {
    struct etcd_lock *next;  /* in its bucket */
    const char *name, *note; /* the request's: live as long as this lock does */
    uint64_t hash;
    struct hfi_owner owner;
    struct etcd_lease *lease; /* NULL: none */
    enum etcd_place place;
    bool late;            /* a request to make the key was given up, and may still arrive */
    bool crowded_out;     /* the last one was refused for want of room, but may have been done */
    bool refused;         /* it is one of lease->refused */
    int64_t own_revision; /* in which the key was made; 0: not known */
    int64_t token;        /* while it is held */
    int64_t done_lease;   /* of the mark that its release leaves; 0: none was asked for */

    /* what it watches: the key before its own while it waits, its own while it holds */
    struct hfi_waiter waiter; /* its id: the watch's number, 0 if it was not asked for yet */
    char *watched;            /* NULL: nothing */
    size_t watched_length;
    int64_t watch_from;    /* the revision to begin with; 0: from now on */
    hfi_time watch_at_ns;  /* when to ask for it */
    int64_t seen_revision; /* the store's when the key was seen to be there */
    int64_t heard_from;    /* what comes after this revision is heard; -1: not yet */
    bool called;           /* it is worth asking again */
    bool lost;             /* the key is gone, though it was held */
};

#endif
