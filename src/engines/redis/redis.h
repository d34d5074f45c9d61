/* SPDX-License-Identifier: MIT
 *
 * redis.h: what the files of the redis engine share, and the redlock engine with them. redis.c opens with how it works.
 *
 *   redis.c               the engine: what the core asks for, in whichever dialect
 *   redis_native.c        Holdfast's own dialect; redis_plain.c, redis_redisson.c: those of other programs
 *   redis_subscription.c  hearing that it is worth asking again; redis_watch.c: hearing that a lock was broken
 *   redis_renew.c         keeping locks; redis_look.c: who holds what; redis_guard.c: fencing; redis_once.c: once
 *   redis_doctor.h        looking at how servers are set up
 *   redis_ask.c           one exchange, with whoever has the key: one server, redis_sentinel.c or redis_cluster.c
 *   redis_wire.c          the connection to a server that all threads share
 *   redis_node.c          a server and the idle connections to it
 *   redis_connect.c       socket, TLS, log-in; redis_connection.c: commands and replies
 *   redis_store.c, redis_url.c, redis_answer.c
 */
#ifndef HFI_REDIS_H
#define HFI_REDIS_H

#include "engine.h"
#include "engines/dial.h"
#include "engines/push.h"
#include "loop/loop.h"
#include <hiredis/hiredis.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

/* How long a lock that was handed to a waiter stays its own unless the waiter confirms it. The scripts know it too. */
#define HFI_REDIS_CLAIM_MS 2000
#define HFI_REDIS_PREFIX_MAX 64
#define HFI_REDIS_HOSTS_MOST 32
#define HFI_REDIS_KEY_MAX (HFI_NAME_MAX + HFI_REDIS_PREFIX_MAX + 80)

struct redis_store;
struct redis_lock;

/* --- redis_url.c --- */

struct redis_address {
    char host[256]; /* or the path of a Unix socket, if port is "" */
    char port[8];
};

/* How to get in. */
struct redis_access {
    SSL_CTX *tls;          /* NULL: no TLS */
    char *user, *password; /* "" if there is none */
    int database;
    bool master;         /* a server that is no master is refused */
    bool alone;          /* there is no other server to go to */
    bool asks_modules;   /* whether the server has commands of our own: see redis_native.c */
    int silence_ms;      /* see dial.h; 0 where a connection that does not answer is left anyway */
    hfi_time connect_ns; /* at most, for one connection; 0: the request's own deadline */
};

enum redis_kind { REDIS_ONE, REDIS_SENTINEL, REDIS_CLUSTER, REDIS_REDLOCK };

struct redis_config {
    enum redis_kind kind;
    struct redis_address *addresses; /* of servers, or of Sentinels */
    size_t address_count;
    char *master; /* its name, for Sentinels */
    bool tls, sentinel_tls, sentinel_tls_given;
    struct redis_access access, sentinel;
    const struct redis_dialect *dialect;
    char *prefix;        /* NULL: the dialect's */
    hfi_time timeout_ns; /* for one exchange; 0: the request's own deadline */
    int replicas;        /* 0: do not wait for any */
    int replica_ms;
    bool fsync;                           /* WAITAOF instead of WAIT */
    bool module;                          /* its commands are used where the server has it */
    char *ca_file, *cert_file, *key_file; /* NULL: the system's, none, none */
    bool verify;
};

hf_status hfi_redis_config_read(struct redis_config *config, const struct hfi_url *url, hf_error *err);
void hfi_redis_config_free(struct redis_config *config);
/* "host:port" as servers write it in answers; false if it is none. */
bool hfi_redis_address_read(struct redis_address *address, const char *host, size_t length, const char *port);

/* --- redis_connection.c --- */

struct redis_script {
    const char *text;
    char hash[41];
    const char *native; /* the command of holdfast.so that does the same, and takes the same words; NULL: none */
};

void hfi_redis_script_init(struct redis_script *script, const char *text);

/* Words of a command, to be filled in with hfi_redis_add(). With `script` the first two say which one. */
struct redis_command {
    const struct redis_script *script;
    bool by_script; /* and not natively: that was refused */
    bool denied;    /* namely to this user */
    int count;
    int room;
    const char **text;
};

#define REDIS_ROOM(words)                                                                                              \
    .room = (words), .text = (const char *[words])                                                                     \
    {                                                                                                                  \
        NULL                                                                                                           \
    }

void hfi_redis_add(struct redis_command *command, const char *text);
/* Starts a command that runs a script, which is known to the server by its hash. */
void hfi_redis_add_script(struct redis_command *command, const struct redis_script *script);

enum redis_phase { REDIS_CONNECTING, REDIS_SHAKING_HANDS, REDIS_LOGGING_IN, REDIS_READY };

struct redis_connection {
    struct redis_connection *next; /* in its node's list of idle ones, or of those that were asked */
    uint64_t number;               /* no other of this process had it */
    int fd;
    SSL *tls;
    redisReader *reader;
    redisReplyObjectFunctions functions; /* the reader's, with a limit */
    enum redis_phase phase;
    struct hfi_dial dial;
    short wants;     /* what poll() is to wait for before the next step */
    bool with_auth;  /* the first reply to the log-in is the one to AUTH */
    bool native;     /* the server has holdfast.so, and has not refused us its commands yet */
    unsigned logged; /* replies to the log-in so far */
    unsigned expected;
    unsigned unanswered; /* commands, of which … */
    unsigned owed;       /* replies that nobody waits for any more, still to come */
    hfi_time owed_ns;    /* since when */
    hfi_time used_ns;
    hfi_time receive_ns; /* what SO_RCVTIMEO is set to */
};

hfi_time hfi_redis_now_ns(void);
/* True if the socket is ready by the deadline. */
bool hfi_redis_ready_by(int fd, short events, hfi_time deadline_ns);
/* Adds the command as it goes over this connection: a script as the module's command, if there is one. False: no
 * memory. */
bool hfi_redis_format(struct hfi_bytes *out, const struct redis_connection *connection,
                      const struct redis_command *command);
bool hfi_redis_create_reader(struct redis_connection *connection);
/* True if the connection, idle so far, still stands. */
bool hfi_redis_is_alive(struct redis_connection *connection);
/* Sends commands in one write. HF_UNKNOWN: part of it may have been sent. */
hf_status hfi_redis_send(struct redis_connection *connection, const struct redis_command *commands, size_t count,
                         hfi_time deadline_ns, hf_error *err);
/* The next reply; *out is freed by freeReplyObject(). HF_TIMEOUT: none by the deadline. HF_UNKNOWN: the connection is
 * of no use any more. Replies that are errors come back as HF_OK. */
hf_status hfi_redis_receive(struct redis_connection *connection, redisReply **out, hfi_time deadline_ns, hf_error *err);
/* The same in two steps that never wait: reads what is there, and takes the next whole reply out of it, NULL if there
 * is none. HF_UNKNOWN: the connection is of no use any more. */
hf_status hfi_redis_fetch(struct redis_connection *connection);
hf_status hfi_redis_fetched(struct redis_connection *connection, redisReply **out);

/* --- redis_connect.c --- */

hf_status hfi_redis_tls_new(SSL_CTX **out, const struct redis_config *config, hf_error *err);
/* Connects, logs in and selects the database. */
hf_status hfi_redis_connect(struct redis_connection **out, const struct redis_address *address,
                            const struct redis_access *access, hfi_time deadline_ns, hf_error *err);
/* The same in steps that never wait. HF_TIMEOUT: not yet; go on when connection->wants is there. */
hf_status hfi_redis_connect_begin(struct redis_connection **out, const struct redis_address *address,
                                  const struct redis_access *access, hf_error *err);
hf_status hfi_redis_connect_step(struct redis_connection *connection, const struct redis_address *address,
                                 const struct redis_access *access, hf_error *err);
/* The sentence and the status of one that is not ready in time. */
hf_status hfi_redis_connect_late(const struct redis_connection *connection, const struct redis_address *address,
                                 hf_error *err);
void hfi_redis_disconnect(struct redis_connection *connection);

/* --- redis_answer.c --- */

/* What an error reply means that concerns `key`, which may be "". NULL: the answer to AUTH, whose words are not shown,
 * since a server without that command repeats its arguments. */
hf_status hfi_redis_refusal(const redisReply *reply, const char *key, hf_error *err);
bool hfi_redis_is_error(const redisReply *reply, const char *code);
/* To HELLO: the server has the module. */
bool hfi_redis_names_module(const redisReply *reply);
enum redis_again { REDIS_ANSWERED, REDIS_BY_HASH, REDIS_BY_TEXT };
struct redis_question;
/* Whether and how a question's command `i` goes again, for which it is made ready: since the server does not know the
 * script, or has refused the module's command: `natively`, it was asked where there is one. Then those behind it that
 * were refused likewise are made ready, too. *gone: from now on scripts are better. */
enum redis_again hfi_redis_again(const struct redis_question *question, redisReply *const *replies, size_t i,
                                 bool natively, bool *gone);
/* The server is a replica: nothing was done. */
bool hfi_redis_is_replica(const redisReply *reply);

/* --- redis_node.c --- */

/* One that we have subscribed to. */
struct redis_channel {
    struct redis_channel *next;
    bool confirmed;
    unsigned users; /* locks that wait for a message on it */
    char name[];
};

/* The connection on which a server tells that it is worth asking again. */
struct redis_push {
    struct hfi_push shared;              /* by all that wait */
    struct redis_connection *connection; /* NULL: nobody listens */
    hfi_time heard_ns;                   /* when the server last said something */
    hfi_time pinged_ns;                  /* when it was asked to, since; 0: it was not */
    hfi_time silence;                    /* for so long it may say nothing: the least of those who wait */
    unsigned unsubscribed;               /* confirmations still to come of channels that we gave up */
    struct redis_channel *channels;      /* with by_channels */
    hf_error refusal;                    /* why a channel was refused */
};

/* A server. Lives as long as its store. */
struct redis_node {
    struct redis_node *next;
    struct redis_store *store;
    struct redis_address address;
    struct redis_connection *idle;
    size_t idle_count;
    struct redis_connection *asked; /* on which somebody waits for an answer */
    struct redis_wire *wire;        /* that all share; NULL: there is none. With the loop's mutex */
    struct redis_wire *renewing;    /* the same, of redlock's renewals while there are unanswered questions on that */
    struct redis_push push;
    bool demoted; /* it has said that it is a replica, and nobody has seen a master here since */
    /* for those who must not wait for a server that is down */
    unsigned failures;
    hfi_time try_again_ns;
};

/* Whose push connection it is. */
static inline struct redis_node *hfi_redis_node_of_push(struct hfi_push *push)
{
    return (struct redis_node *)(void *)((char *)push - offsetof(struct redis_node, push.shared));
}

/* The node at `address`, found or made; NULL: no memory. */
struct redis_node *hfi_redis_node(struct redis_store *store, const struct redis_address *address);
void hfi_redis_nodes_free(struct redis_store *store);
/* A connection that is ready, idle so far or new. */
hf_status hfi_redis_borrow(struct redis_store *store, struct redis_node *node, struct redis_connection **out,
                           hfi_time deadline_ns, hf_error *err);
/* An idle one, or NULL; perhaps owing replies. */
struct redis_connection *hfi_redis_idle(struct redis_store *store, struct redis_node *node);
void hfi_redis_give_back(struct redis_store *store, struct redis_node *node, struct redis_connection *connection);
/* While an answer is waited for, the connection is in its node's list of those that were asked. False: it is not, since
 * another server has taken that one's place. */
bool hfi_redis_asked(struct redis_store *store, struct redis_node *node, struct redis_connection *connection);
void hfi_redis_answered(struct redis_store *store, struct redis_node *node, const struct redis_connection *connection);
/* A request on a connection to `node` was lost: those that were idle for as long may be as dead, and must not cost a
 * timeout each. */
void hfi_redis_drop_old(struct redis_store *store, struct redis_node *node);
/* Nothing that was said to `node` so far is of use any more: another server has taken its place. Whoever waits for an
 * answer is told that there will be none. */
void hfi_redis_drop_node(struct redis_store *store, struct redis_node *node);

/* --- redis_ask.c --- */

/* What became of a question that no thread waited for: as hfi_redis_ask() returns it, and in `err` if that is not
 * HF_OK. Must not wait for anything. */
typedef void (*hfi_redis_answered_fn)(struct redis_store *store, struct redis_question *question, hf_status status,
                                      const hf_error *err);

/* One exchange: commands in one write. */
struct redis_question {
    const char *key; /* whoever has it is asked; NULL: `node` is */
    struct redis_command *commands;
    size_t count;
    hfi_time deadline_ns;
    bool renews;             /* it must not wait behind anything else */
    struct redis_node *node; /* set: who was asked */
    hfi_time sent_ns;        /* set: when it was sent */
    redisReply **replies;    /* of one that no thread waits for */
    hfi_redis_answered_fn answered;
};

/* Asks on the connection that all share; or on one of its own if it must not wait for others, or others for it. Scripts
 * go by their hash, and again with their text if the server does not know them. On
 * HF_OK all replies are there, errors among them, and each must be freed. HF_UNKNOWN: sent, but not answered. */
hf_status hfi_redis_ask(struct redis_store *store, struct redis_question *question, redisReply **replies,
                        hf_error *err);
/* The same without waiting, where that is possible, see hfi_redis_can_start(): question->answered is called once, on
 * any thread; the question and its replies are in use until then. False: it was not begun. */
bool hfi_redis_ask_start(struct redis_store *store, struct redis_question *question, redisReply **replies);
/* There is one server, nobody else to find or to wait for, and what it does not do at once it does not do. */
bool hfi_redis_can_start(const struct redis_store *store);
/* And forgets them: whoever asked may free what it finds there after a failure too. */
void hfi_redis_free_replies(redisReply **replies, size_t count);
/* The first connection to `node`. */
hf_status hfi_redis_ask_open(struct redis_store *store, struct redis_node *node, hfi_time deadline_ns, hf_error *err);
/* Sends a command whose answer nobody waits for, if there is a connection to `node`. */
void hfi_redis_tell(struct redis_store *store, struct redis_node *node, const struct redis_command *command);
/* Whether a failure is one of a read, of which nothing is unknown. */
hf_status hfi_redis_only_read(hf_status status, hf_error *err);
/* Who has `key`, as far as we know. */
hf_status hfi_redis_find(struct redis_store *store, const char *key, struct redis_node **out, hfi_time deadline_ns,
                         hf_error *err);
/* What an answer says about where to ask. */
enum redis_verdict {
    REDIS_FINAL, /* this is the answer */
    REDIS_MOVED, /* nothing was done; ask again at once: somebody else has it */
    REDIS_LATER  /* nothing was done; ask again in a moment */
};

/* --- redis_sentinel.c --- */

struct redis_sentinel {
    size_t last;                         /* the Sentinel that answered last */
    struct redis_node *master;           /* NULL: to be asked for */
    struct redis_node *known;            /* the last one */
    struct redis_connection *connection; /* tells of a new master; NULL: none */
    hfi_time pinged_ns;                  /* when it was last asked to say something, or else made */
    bool silent;                         /* it has not since */
    hfi_time try_again_ns;               /* to listen to another one, if there is none and all were tried */
    size_t tries;                        /* since the last time that this was put off */
};

/* The master; makes sure that some Sentinel will tell of another one, if there is any. */
hf_status hfi_redis_sentinel_find(struct redis_store *store, struct redis_node **out, hfi_time deadline_ns,
                                  hf_error *err);
/* `node` is no longer the master, as far as we know: what it says does not count. */
bool hfi_redis_sentinel_replaced(struct redis_store *store, const struct redis_node *node);
enum redis_verdict hfi_redis_sentinel_judge(struct redis_store *store, struct redis_node *node, hf_status status,
                                            const redisReply *reply, hfi_time deadline_ns);
/* To be called now and then: a Sentinel that says nothing any more is left. */
void hfi_redis_sentinel_look_after(struct redis_store *store);
void hfi_redis_sentinel_take_push(struct redis_store *store);

/* --- redis_cluster.c --- */

struct redis_cluster;

hf_status hfi_redis_cluster_open(struct redis_store *store, hfi_time deadline_ns, hf_error *err);
void hfi_redis_cluster_close(struct redis_store *store);
hf_status hfi_redis_cluster_find(struct redis_store *store, const char *key, struct redis_node **out,
                                 hfi_time deadline_ns, hf_error *err);
/* The same without asking anybody; NULL: not known. With the mutex. */
struct redis_node *hfi_redis_cluster_known(const struct redis_store *store, const char *key);
/* *asked: the node to ask once, with ASKING; NULL: the one that hfi_redis_cluster_find() says. */
enum redis_verdict hfi_redis_cluster_judge(struct redis_store *store, struct redis_node *node, hf_status status,
                                           const redisReply *reply, struct redis_node **asked, hfi_time deadline_ns);
/* The node after `node` that has slots of its own; NULL: there is no other. Start with NULL. */
struct redis_node *hfi_redis_cluster_next(struct redis_store *store, const struct redis_node *node);
unsigned hfi_redis_slot(const char *key);

/* --- dialects --- */

#define HFI_REDIS_KEYS_MOST 4
#define HFI_REDIS_OWNER_MAX 72
typedef char redis_keys[HFI_REDIS_KEYS_MOST][HFI_REDIS_KEY_MAX];

enum redis_script_name {
    REDIS_ACQUIRE, /* owner, "host pid note", ttl, 1 to line up: the token, or { -1, now, left ms, place, holder } */
    REDIS_RELEASE, /* owner, "host pid note", and 1 to leave a mark: 1 if it was held or waited for, else 0 */
    REDIS_RENEW,   /* keys of locks; "owner" or "owner+N" and ttl of each: 1 or 0 for each */
    REDIS_EVICT,   /* "": a text that stands for the holder, or 0; that text, and by whom: 1 if it was broken, else 0 */
    REDIS_LOOK,    /* { 1, token, left ms, held for ms, "host pid note", waiters… }, or { 0 } */
    REDIS_CALL,    /* after a release by other means: calls the next in line */
    REDIS_ACQUIRE_ONCE, /* a key more: as REDIS_ACQUIRE; or { -2, now, record } if its work is recorded as done */
    REDIS_RELEASE_DONE, /* a key and, third, an argument more: as REDIS_RELEASE; or { that, why there is no record } */
    REDIS_GUARD,        /* the same in all dialects: see redis_guard.c */
    REDIS_FORGET_DONE,  /* likewise: see redis_once.c */
    REDIS_SCRIPTS
};

/* How a lock looks on the server. All dialects answer in the same way. */
struct redis_dialect {
    const char *name;
    const char *prefix; /* of the key */
    uint32_t caps;
    bool own_channels; /* one channel for each lock, not one for each client */
    bool gifts;        /* a release hands the lock over; without, its message only says that it is worth asking */
    bool reserves;     /* its REDIS_ACQUIRE takes a fifth argument: so many tokens more are for the same grant */
    bool leaves_latch; /* its fourth key answers a release that is sent again; to be deleted after the answer */
    bool strangers;    /* holders that send no message: they must be asked after */
    /* By number, for PUBLISH and for SPUBLISH. NULL: the dialect has no such script. */
    const char *scripts[REDIS_SCRIPTS];
    const char *sharded_scripts[REDIS_SCRIPTS];
    /* Those of holdfast.so that do the same; NULL: none does. */
    const char *const *commands, *const *sharded_commands;
    /* The keys of a lock, the first of them the lock's own; how many. */
    size_t (*keys)(redis_keys keys, const struct redis_store *store, const char *name, struct hfi_owner owner);
    void (*owner)(char out[HFI_REDIS_OWNER_MAX], struct hfi_owner owner);
    /* The channel on which `owner` hears of a lock; only with own_channels, or where publishing is sharded. */
    void (*channel)(char out[HFI_REDIS_KEY_MAX], const redis_keys keys, uint64_t client);
    /* Of all keys of this type below "hf:", or below the prefix: the lock that one belongs to; false: none. */
    const char *key_type;
    bool (*name_of)(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key);
};

extern const struct redis_dialect hfi_redis_native, hfi_redis_plain, hfi_redis_tair, hfi_redis_redisson;

/* True if a key has a {tag} that decides on its slot. */
bool hfi_redis_has_tag(const char *key);
/* "client.serial" */
void hfi_redis_owner(char out[HFI_REDIS_OWNER_MAX], struct hfi_owner owner);

/* --- redis_plain.c --- */

/* What keeps a key of another format company, in its slot: "hf:{KEY}:SUFFIX", or "hf::KEY:SUFFIX" if KEY has a {tag}
 * of its own. */
void hfi_redis_companion(char out[HFI_REDIS_KEY_MAX], const char *key, const char *suffix);
/* The lock whose last grant is kept at `key`; false: none. */
bool hfi_redis_companion_name(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key);
/* The same for any suffix. */
bool hfi_redis_companion_of(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key,
                            const char *suffix);
/* HF_INVALID: the lock's key would be one that keeps another lock company. */
hf_status hfi_redis_check_name(const struct redis_store *store, const char *name, hf_error *err);

/* How a lock is released by a single command, where the server has one that compares. */
enum redis_verb { REDIS_BY_SCRIPT, REDIS_BY_DELEX, REDIS_BY_DELIFEQ, REDIS_BY_CAD };
/* Finds out what the server has. */
hf_status hfi_redis_plain_open(struct redis_store *store, hfi_time deadline_ns, hf_error *err);
/* Releases by a single command. *reply: the answer; NULL with HF_OK: it was refused, and the script must do it. */
hf_status hfi_redis_plain_release(struct redis_store *store, const struct hfi_request *request, redisReply **reply,
                                  hf_error *err);

/* --- redis_watch.c --- */

/* The connection on which we hear that a lock was broken. All of it with the store's mutex, but for `events`. */
struct redis_watch {
    int events;                          /* an epoll of it, and of the Sentinel's */
    struct redis_connection *connection; /* NULL: none; may be on its way */
    struct redis_node *node;             /* to whom */
    hfi_time try_again_ns;
    uint64_t sentinel; /* the number of the Sentinel's connection that is waited for */
};

bool hfi_redis_watch_open(struct redis_store *store);
void hfi_redis_watch_close(struct redis_store *store);
/* After a lock was renewed: listens, if that is not so yet, to the server that has `key`. Never waits. */
void hfi_redis_watch(struct redis_store *store, const char *key);
/* The same, but to `node`, and to no other any more. */
void hfi_redis_watch_node(struct redis_store *store, struct redis_node *node);
/* `node` is not what it was: the next renewal sees to it. With the mutex. */
void hfi_redis_watch_anew(struct redis_store *store, const struct redis_node *node);
/* As the engine's push() and take_push(). */
int hfi_redis_push_fd(void *memory);
void hfi_redis_take_push(void *memory);

/* --- redis_store.c --- */

struct redis_store {
    const struct hfi_env *env;
    struct redis_config config;
    struct redis_script scripts[REDIS_SCRIPTS];
    char who[96];     /* "host pid" */
    bool by_channels; /* waiters listen to a channel for each lock: the dialect's way, or that of sharded publishing */
    bool sharded;     /* SPUBLISH and SSUBSCRIBE */
    enum redis_verb verb;

    struct hfi_loop loop; /* of the shared connections */
    pthread_mutex_t mutex;
    struct redis_node *nodes;
    struct redis_sentinel sentinel;
    struct redis_cluster *cluster;
    struct redis_watch watch;
};

enum redis_state {
    REDIS_NEW,    /* not held, as far as we know; may stand in the queue */
    REDIS_CALLED, /* it is worth asking again */
    REDIS_GIVEN,  /* somebody handed it to us */
    REDIS_HELD
};

/* What a lock needs while it waits. */
struct redis_wait {
    struct hfi_waiter waiter; /* of its node */
    struct redis_lock *lock;
    /* what ties the server's clock to ours: a request that was sent at sent_ns was answered with server_us */
    hfi_time sent_ns;
    int64_t server_us;
    /* the gift */
    uint64_t token;
    uint32_t tokens; /* from that on */
    int64_t given_us;
    struct redis_channel *channel; /* with by_channels */
    hfi_time silence;              /* for so long the server may say nothing */
    unsigned polls;
    bool subscribes; /* all that it waits for is that its channel is confirmed */
    bool refused;    /* which it was not */
};

/* There may be very many that are held. */
struct redis_lock {
    enum redis_state
        state; /* becomes REDIS_CALLED or REDIS_GIVEN under the store's mutex, at any time while it waits */
    _Atomic unsigned unanswered; /* attempts and renewals, so far: N of the renewals to come; release() reads it, too */
    bool queued;                 /* it stands in the queue, as far as we know */
    bool unsure;                 /* the server may know of it: an answer was lost, or too few replicas have it */
    bool astray;                 /* an attempt was not answered, and may arrive at any time */
    struct redis_wait *wait;     /* NULL unless a message may come for it; hfi_redis_expect_no_more() frees it */
};

/* From which it may be told something; NULL: from none. */
static inline struct redis_node *hfi_redis_node_of(const struct redis_lock *lock)
{
    struct hfi_push *push = lock->wait ? lock->wait->waiter.push : NULL;
    return push ? hfi_redis_node_of_push(push) : NULL;
}

void hfi_redis_scripts_init(struct redis_script scripts[REDIS_SCRIPTS], const struct redis_dialect *dialect,
                            bool sharded);
/* What every dialect's store needs: all but connecting. */
hf_status hfi_redis_store_init(struct redis_store *store, const struct hfi_url *url, const struct hfi_env *env,
                               hf_error *err);
void hfi_redis_store_free(struct redis_store *store);
/* When to ask again for a lock that is busy for `left_ms` (-1: not known) and has `place` others before us. */
void hfi_redis_backstop(const struct redis_store *store, struct redis_wait *wait, int64_t left_ms, int64_t place);

/* --- redis_renew.c --- */

hf_status hfi_redis_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                          hf_error *err);
/* WAIT or WAITAOF behind a script, in the same write; false if the URL asks for neither. */
bool hfi_redis_add_replication(struct redis_command *command, char replicas[16], char patience[24],
                               const struct redis_config *config, hfi_time left_ns);
/* HF_OK: as many replicas as the URL asks for have it. */
hf_status hfi_redis_check_replication(const redisReply *reply, const struct redis_config *config, hf_error *err);
/* The same of what is done and stays, but must not be counted on if too few have it: false with HF_UNKNOWN. */
bool hfi_redis_is_confirmed(const redisReply *reply, const struct redis_config *config, hf_error *err);
/* Asks with one command and, if the URL asks for replicas, has them confirm it in the same write. *confirmed: enough
 * have, or none need to; else `err` says so. */
hf_status hfi_redis_ask_confirmed(struct redis_store *store, struct redis_question *question, redisReply **reply,
                                  bool *confirmed, hf_error *err);

/* --- redis_subscription.c --- */

/* True for what was pushed, { kind, channel, … }, whichever way it was published. */
bool hfi_redis_is_about(const redisReply *reply, const char *kind);
/* Makes sure that messages for `lock` can reach us from `node`. HF_OK: they can, or will soon: hfi_redis_listen(). As
 * an engine's wait(), while another one sees to it. */
hf_status hfi_redis_subscribe(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                              const struct hfi_request *request, hfi_time deadline_ns, hf_error *err);
/* Before the server is asked for a place in the queue: a message for `lock` may come at any time from then on, even
 * before the answer. False: nobody listens, so no place must be asked for. */
bool hfi_redis_expect(struct redis_store *store, struct redis_node *node, struct redis_lock *lock,
                      struct hfi_owner owner);
void hfi_redis_push_init(struct redis_store *store, struct redis_node *node);
void hfi_redis_push_free(struct redis_node *node);
/* `node` is not what it was: whoever waits for a message from it must ask. */
void hfi_redis_lose_push(struct redis_store *store, struct redis_node *node);
/* Whoever waits for a message from `node` is to ask, though nothing was missed. */
void hfi_redis_call_all(struct redis_store *store, struct redis_node *node);
/* No message is of interest any more; sets the lock's state. */
void hfi_redis_expect_no_more(struct redis_store *store, struct redis_lock *lock, enum redis_state state);
/* As the engine's wait(), for whoever stands in the queue. A push connection that says nothing has to show that it is
 * alive. */
hf_status hfi_redis_listen(struct redis_store *store, struct redis_lock *lock, const struct hfi_request *request);

/* --- redis_look.c --- */

hf_status hfi_redis_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err);
hf_status hfi_redis_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err);
hf_status hfi_redis_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);
/* Shows what REDIS_LOOK answered; HF_INTERNAL or worse if that makes no sense. *stop: `each` has seen enough. */
hf_status hfi_redis_show(const struct redis_store *store, const redisReply *reply, const char *name, hf_inspect_fn each,
                         void *arg, int *stop, hf_error *err);
/* Shows a lock that is held; the reply's shape was looked at, and its first element is not. */
int hfi_redis_show_lock(const redisReply *reply, const char *name, bool queue, hf_inspect_fn each, void *arg);
/* One step of SCAN on `node`, for locks or for records of what is done; the cursor is "0" after the last. */
hf_status hfi_redis_scan(struct redis_store *store, struct redis_node *node, bool done, char cursor[24],
                         redisReply **out, hfi_time deadline_ns, hf_error *err);
/* All records, wherever they are. */
hf_status hfi_redis_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err);

/* --- redis_guard.c --- */

extern const char hfi_redis_guard_script[];
hf_status hfi_redis_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err);

/* --- redis_once.c --- */

extern const char hfi_redis_forget_script[];
/* Where the record is that the work of a lock is done, and its inverse; false: `key` is none. */
void hfi_redis_done_key(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *name);
bool hfi_redis_done_name(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key);

/* What a record says at server time `now_us`. */
struct redis_done {
    uint64_t token;
    int64_t ago_ms, left_ms;
    char host[65];
    long long pid;
    const char *note; /* points into the record */
};

/* False: it is no record. */
bool hfi_redis_read_done(struct redis_done *out, const char *record, int64_t now_us);
/* True if the reply is that of REDIS_ACQUIRE_ONCE for work that is done; *status: HF_DONE with `grant` filled in, or
 * what is wrong with the record. */
bool hfi_redis_take_done(const redisReply *reply, const char *name, struct hfi_grant *grant, hf_status *status,
                         hf_error *err);
int hfi_redis_show_done(const struct redis_done *done, const char *name, hf_inspect_fn each, void *arg);
hf_status hfi_redis_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);

#endif
