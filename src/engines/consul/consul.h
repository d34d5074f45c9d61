/* SPDX-License-Identifier: MIT
 *
 * consul.h: what the files of the consul: engine share. consul.c opens with how it works.
 *
 *   consul.c            the engine: open, close, the table of functions
 *   consul_lock.c       taking, waiting, releasing; consul_work.c: what is known of a lock, and how it is learnt
 *   consul_queue.c      what is seen of a lock by others, and who comes before whom
 *   consul_session.c    sessions, one for each time-to-live; consul_renew.c: keeping locks
 *   consul_push.c        long polls and the renewal of sessions, on the keeper's thread
 *   consul_look.c       who holds what, forced release, fencing; consul_done.c: what is done
 *   consul_doctor.c     what in the way the servers and the agent are set up could lose a lock
 *   consul_txn.c        transactions and what is in an entry
 *   consul_answer.c     what the server's refusals mean
 *   consul_http.c       one exchange; consul_connect.c: socket and TLS; consul_url.c
 *
 * HTTP is spoken over sockets of our own. libcurl makes a pair of sockets for each of its handles that an exec()ed
 * command inherits, and has no way to tell which; and it does not say whether a request that failed was sent.
 */
#ifndef HFI_CONSUL_H
#define HFI_CONSUL_H

#include "engine.h"
#include "engines/dial.h"
#include <jansson.h>
#include <openssl/ssl.h>
#include <pthread.h>

#define HFI_CONSUL_PREFIX_MAX 200
#define HFI_CONSUL_KEY_MAX (HFI_CONSUL_PREFIX_MAX + HFI_NAME_ENCODED_MAX + 80)
#define HFI_CONSUL_VALUE_MAX 512
#define HFI_CONSUL_HOSTS_MOST 16
/* As `consul lock` marks a lock. */
#define HFI_CONSUL_LOCK_FLAGS 0x2ddccbc058a50c18u

struct consul_store;

/* --- consul_url.c --- */

struct consul_address {
    char host[256];
    char port[8];
};

struct consul_config {
    struct consul_address addresses[HFI_CONSUL_HOSTS_MOST];
    size_t address_count;
    char *prefix, *token, *datacenter; /* "" if there is none */
    bool tls, verify;
    char *ca_file, *cert_file, *key_file; /* NULL: the system's, none, none */
    uint32_t lock_delay_ms;
};

hf_status hfi_consul_config_read(struct consul_config *config, const struct hfi_url *url, hf_error *err);
void hfi_consul_config_free(struct consul_config *config);

/* --- consul_connect.c, consul_http.c --- */

enum consul_phase { CONSUL_CONNECTING, CONSUL_SHAKING_HANDS, CONSUL_SENDING, CONSUL_RECEIVING, CONSUL_IDLE };

struct consul_reply {
    int status;
    uint64_t index; /* X-Consul-Index, 0: none */
    int64_t date_s; /* by the agent's clock, 0: not told */
    bool keeps;     /* the connection is good for another exchange */
    const char *body;
    size_t length;
};

struct consul_connection {
    struct consul_connection *next; /* in the store's list of idle ones */
    size_t host;                    /* in the configuration */
    int fd;
    SSL *tls;
    enum consul_phase phase;
    struct hfi_dial dial;
    short wants; /* what poll() is to wait for before the next step */
    char *out;   /* the request */
    size_t out_length, out_sent;
    char *in;
    size_t in_used, in_room;
    struct consul_reply reply;
    hfi_time used_ns;
};

hf_status hfi_consul_tls_open(struct consul_store *store, hf_error *err);
/* Starts to connect. */
hf_status hfi_consul_connect(const struct consul_store *store, size_t host, struct consul_connection **out,
                             hf_error *err);
/* Goes on as far as it can without waiting. HF_OK: connected. HF_TIMEOUT: when connection->wants is there. */
hf_status hfi_consul_connect_step(const struct consul_store *store, struct consul_connection *connection,
                                  hf_error *err);
void hfi_consul_disconnect(struct consul_connection *connection);
/* Wipes it: the token is in it. */
void hfi_consul_forget_request(struct consul_connection *connection);
/* As send() and recv() do, with TLS or without; -1 with EAGAIN sets connection->wants. */
ssize_t hfi_consul_write(struct consul_connection *connection, const char *bytes, size_t length);
ssize_t hfi_consul_read(struct consul_connection *connection, char *bytes, size_t room);

/* A request and its answer. `connection` is NULL unless something is under way. */
struct consul_exchange {
    struct consul_connection *connection;
    bool locked; /* the caller has the store's mutex */
    hfi_time begun_ns;
    size_t tries;                     /* hosts that were asked in vain */
    const struct consul_reply *reply; /* until hfi_consul_end() */
};

struct consul_request {
    const char *method; /* "PUT" */
    const char *path;   /* "/v1/txn?consistent", encoded; the datacenter is added */
    const char *body;   /* NULL: none */
};

/* Prepares it. After HF_OK hfi_consul_end() must follow sooner or later. */
hf_status hfi_consul_begin(struct consul_store *store, struct consul_exchange *exchange,
                           const struct consul_request *request, hf_error *err);
/* Goes on as far as it can without waiting. HF_OK: there is a reply. HF_TIMEOUT: not yet. HF_UNAVAILABLE: nothing was
 * sent. HF_UNKNOWN: it was, at least in part. */
hf_status hfi_consul_step(struct consul_store *store, struct consul_exchange *exchange, hf_error *err);
/* The same until the deadline, and with the next host if one cannot be reached. HF_TIMEOUT: sent, no reply yet. */
hf_status hfi_consul_finish(struct consul_store *store, struct consul_exchange *exchange, hfi_time deadline_ns,
                            hf_error *err);
/* How long an answer is waited for before it is taken for lost. An agent may have given the request to a leader that
 * was cut off; if there are others to ask, that is found out sooner. */
hfi_time hfi_consul_patience(const struct consul_store *store);
/* Gives the connection back, or closes it if there is an answer still to come. Takes one that was ended. */
void hfi_consul_end(struct consul_store *store, struct consul_exchange *exchange);
/* All of it. After HF_OK, and only then, the exchange is to be ended. Never HF_TIMEOUT. */
hf_status hfi_consul_ask(struct consul_store *store, struct consul_exchange *exchange,
                         const struct consul_request *request, hfi_time deadline_ns, hf_error *err);
/* `text` for a path; `out` has room for three times its length and a zero. */
void hfi_consul_escape(char *out, const char *text);

/* --- consul_answer.c --- */

/* What a reply other than 200 means. `writes`: what it may have done is not known, unless it says so. */
hf_status hfi_consul_refusal(const struct consul_store *store, const struct consul_reply *reply, bool writes,
                             hf_error *err);
/* The same for what a transaction complains of; HF_OK if it is just a condition that does not hold. */
hf_status hfi_consul_complaint(const char *what, hf_error *err);

/* --- consul_txn.c --- */

struct consul_operation {
    const char *verb, *key;
    const char *session, *value; /* NULL: none */
    uint64_t index, flags;
};

struct consul_answer {
    json_t *root;
    uint64_t failed; /* bits of the operations whose condition does not hold; 0: all were done */
    bool delayed;    /* one of them because of a lock-delay */
    bool no_session; /* … because the session is gone */
    int64_t date_s;  /* by the agent's clock, 0: not told */
};

#define HFI_CONSUL_OPERATIONS_MOST 60

hf_status hfi_consul_txn_begin(struct consul_store *store, struct consul_exchange *exchange,
                               const struct consul_operation *operations, size_t count, hf_error *err);
/* HF_OK: `answer` is to be freed. HF_TIMEOUT: sent, no reply yet; call again. */
hf_status hfi_consul_txn_end(struct consul_store *store, struct consul_exchange *exchange, struct consul_answer *answer,
                             hfi_time deadline_ns, hf_error *err);
/* Both, for what only reads or is harmless when done twice or late. Never HF_TIMEOUT. */
hf_status hfi_consul_txn(struct consul_store *store, const struct consul_operation *operations, size_t count,
                         struct consul_answer *answer, hfi_time deadline_ns, hf_error *err);
void hfi_consul_answer_free(struct consul_answer *answer);

/* What an entry's value says of its owner, "client.serial since ttl token host pid note". The token is 0, and was
 * something else in version 0.1 after a renewal for longer. */
struct consul_holder {
    struct hfi_owner owner; /* { 0, 0 }: not one of ours */
    int64_t since_s;        /* by the agent's clock */
    uint32_t ttl_ms;
    uint64_t token; /* 0: the entry's own index */
    char host[65];
    long long pid;
    char note[128];
};

/* The same as a text. */
void hfi_consul_describe(char out[HFI_CONSUL_VALUE_MAX], struct consul_store *store, struct hfi_owner owner,
                         uint32_t ttl_ms, const char *note);

struct consul_entry {
    const char *key, *session; /* "" if there is none; as long as the answer */
    uint64_t created, modified, locked, flags;
    struct consul_holder holder;
};

/* The value of the entry `i`; "" if there is none, or it is too long to be one of ours. */
void hfi_consul_text(char out[HFI_CONSUL_VALUE_MAX], const struct consul_answer *answer, size_t i);
/* The same as a number; 0 if it is none. */
uint64_t hfi_consul_number(const struct consul_answer *answer, size_t i);
size_t hfi_consul_entries(const struct consul_answer *answer);
/* The entry `i`; false if it makes no sense. */
bool hfi_consul_entry(const struct consul_answer *answer, size_t i, struct consul_entry *out);

enum consul_key {
    CONSUL_LOCK,   /* P/NAME/.lock, as `consul lock P/NAME` has it */
    CONSUL_PLACE,  /* P/NAME/.holdfast/client.serial: a place in the queue */
    CONSUL_MARKER, /* P/NAME/.holdfast/queue: somebody has lined up */
    CONSUL_ALL     /* P/NAME/. : what all of these begin with */
};
void hfi_consul_key(char out[HFI_CONSUL_KEY_MAX], const struct consul_store *store, enum consul_key kind,
                    const char *name, struct hfi_owner owner);

/* --- consul_push.c --- */

struct consul_lock;
struct consul_session;

enum consul_errand {
    CONSUL_LISTEN, /* until the session's own key changes, because a lock was broken or the session has ended */
    CONSUL_RENEWAL
};

/* An exchange whose answer the keeper waits for. All with the store's mutex. */
struct consul_call {
    struct consul_call *next; /* in the store's list of those under way */
    enum consul_errand errand;
    struct consul_exchange exchange;
    hfi_time sent_ns, give_up_ns;
    struct consul_session *session;
    uint64_t index; /* what is waited for is a change after it */
};

bool hfi_consul_push_open(struct consul_store *store);
void hfi_consul_push_close(struct consul_store *store);
void hfi_consul_take_push(struct consul_store *store);
/* Sets the timer to what is due next. */
void hfi_consul_push_arm(struct consul_store *store);
/* A long poll for a change of the key after `index`. */
#define HFI_CONSUL_POLL_S 60
hf_status hfi_consul_poll(struct consul_store *store, struct consul_exchange *exchange, const char *key,
                          uint64_t index);
void hfi_consul_call_end(struct consul_store *store, struct consul_call *call);

/* --- consul_session.c --- */

struct consul_session {
    struct consul_session *next;
    uint32_t ttl_ms;
    char id[40];
    bool making;         /* one thread is at it, others wait */
    bool suspect;        /* the server may no longer have it */
    bool dead;           /* it no longer has */
    unsigned users;      /* locks that are held or asked for */
    unsigned refused;    /* locks that are to be released, which the server refuses: they do not keep it alive */
    unsigned holds;      /* … held */
    uint64_t fence;      /* index of its own key, P/.holdfast/ID */
    hfi_time renewed_ns; /* when the renewal that was answered last was sent */
    hfi_time renew_at_ns, listen_at_ns;
    struct consul_call renewal, listener;
};

/* The session for locks with this time-to-live, found or made; to be given back. */
hf_status hfi_consul_session_get(struct consul_store *store, uint32_t ttl_ms, struct consul_session **out,
                                 hfi_time deadline_ns, hf_error *err);
void hfi_consul_session_put(struct consul_store *store, struct consul_session *session);
/* One renewal in two steps, so that something else can be asked meanwhile. HF_LOST: the session is gone. */
hf_status hfi_consul_session_renew_begin(struct consul_store *store, struct consul_session *session,
                                         struct consul_exchange *exchange, hf_error *err);
hf_status hfi_consul_session_renew_end(struct consul_store *store, struct consul_session *session,
                                       struct consul_exchange *exchange, hfi_time deadline_ns, hf_error *err);
/* The same in one, unless it was renewed so recently that nothing would be gained. */
hf_status hfi_consul_session_keep(struct consul_store *store, struct consul_session *session, hfi_time deadline_ns,
                                  hf_error *err);
/* It was renewed by a request that was sent at `sent_ns`; or somebody should look whether it is still there. With the
 * mutex. */
void hfi_consul_session_renewed(struct consul_store *store, struct consul_session *session, hfi_time sent_ns);
void hfi_consul_session_suspect(struct consul_store *store, struct consul_session *session);
/* Whether it was renewed so recently that another renewal would gain nothing. */
bool hfi_consul_session_is_fresh(struct consul_store *store, const struct consul_session *session);
/* Finds the fence anew, and whether the session is still there: HF_LOST if not. */
hf_status hfi_consul_session_check(struct consul_store *store, struct consul_session *session, hfi_time deadline_ns,
                                   hf_error *err);
void hfi_consul_session_key(char out[HFI_CONSUL_KEY_MAX], const struct consul_store *store, const char *id);
/* A lock's time-to-live, as far as the session promises it. */
void hfi_consul_session_count(struct consul_store *store, const struct consul_session *session, uint32_t ttl_ms,
                              hfi_time *counted_from_ns, uint32_t *valid_ms);
void hfi_consul_sessions_close(struct consul_store *store);
/* "200ms", "10s", "1m30s" as Go writes durations; 0 if it is not like that. */
uint32_t hfi_consul_read_duration_ms(const char *text);

/* --- consul_queue.c --- */

/* So many places before ours are checked in the transaction that takes the lock; with more of them we look first. */
#define HFI_CONSUL_AHEAD_MOST 48

/* What an answer with all entries of a lock shows to one who wants it. */
struct consul_view {
    bool free;                       /* nobody holds it */
    bool mine;                       /* the lock, by its owner */
    bool placed;                     /* our place in the queue is there */
    bool waited;                     /* there are places of others */
    bool foreign;                    /* the key is used for something else */
    struct consul_entry lock, place; /* key "": there is none */
    uint64_t marker;                 /* its index, 0: there is none */
    struct hfi_owner ahead[HFI_CONSUL_AHEAD_MOST];
    size_t ahead_count;       /* may be larger than the array */
    struct consul_entry last; /* the place right before ours; key "": there is none */
};

/* "host:pid note", or what else is known of who has it; "" if nobody has. */
void hfi_consul_say_who(char out[160], const struct consul_entry *lock);
void hfi_consul_view(struct consul_view *view, const struct consul_answer *answer, const struct consul_store *store,
                     const char *name, struct hfi_owner owner);

/* --- consul_lock.c, consul_renew.c --- */

enum consul_asked { CONSUL_NOTHING, CONSUL_TAKE, CONSUL_JOIN, CONSUL_SETTLE, CONSUL_RELEASE, CONSUL_LEAVE };

struct consul_lock {
    struct consul_session *session; /* with the store's mutex where renew() looks, as all down to `token` */
    bool held;
    uint64_t index; /* of the entry, while it is held: tells this grant from every other */
    uint64_t token;
    bool placed;  /* has a place in the queue */
    bool refused; /* the server does not let it go: it is none of its session's users any more */
    bool unsure;  /* a request that may take it, or a place, was sent and its answer is lost */
    bool behind;  /* somebody is before us, or uses the key for something else: look before asking again */
    bool foreign;
    bool delayed;         /* by a lock-delay: only time helps */
    uint64_t joined;      /* index of the marker when we lined up */
    uint64_t left_behind; /* index of the key of a lock that is free, 0: there is no key */
    uint64_t stale;       /* index of a marker that nobody stands behind, 0: none */
    struct hfi_owner ahead[HFI_CONSUL_AHEAD_MOST];
    size_t ahead_count;
    bool watch_place; /* wait for a change of the place `watched`, not of the lock itself */
    struct hfi_owner watched;
    uint64_t watch_index;
    char busy[160];
    bool done;                         /* its work is, by `busy` */
    int64_t done_ago_ms, done_left_ms; /* -1: not known */
    enum consul_asked asked;           /* what exchange is about */
    struct consul_exchange exchange;
    /* with the store's mutex */
    struct hfi_owner owner;
    struct consul_lock *next_placed; /* in the store's list of those that have a place */
    struct hfi_waker *waker;
    bool news; /* the place before ours, which is this client's too, was given up */
};

hf_status hfi_consul_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                             struct hfi_grant *grant, hf_error *err);
hf_status hfi_consul_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);
hf_status hfi_consul_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);
hf_status hfi_consul_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                           hf_error *err);

/* --- consul_work.c --- */

/* A transaction that is being put together, and its answer. */
struct consul_work {
    struct consul_store *store;
    struct consul_lock *lock;
    const struct hfi_request *request;
    hf_error *err;
    struct consul_operation operations[HFI_CONSUL_OPERATIONS_MOST];
    size_t count;
    struct consul_answer answer;
    char key[HFI_CONSUL_KEY_MAX], place[HFI_CONSUL_KEY_MAX], marker[HFI_CONSUL_KEY_MAX], all[HFI_CONSUL_KEY_MAX];
    char fence[HFI_CONSUL_KEY_MAX], value[HFI_CONSUL_VALUE_MAX];
    char done[HFI_CONSUL_KEY_MAX]; /* with request->once only */
};

void hfi_consul_work_start(struct consul_work *work, struct consul_store *store, struct consul_lock *lock,
                           const struct hfi_request *request, hf_error *err);
bool hfi_consul_same(struct hfi_owner a, struct hfi_owner b);
/* Another operation, whose other fields the caller fills in. */
struct consul_operation *hfi_consul_add(struct consul_work *work, const char *verb, const char *key);
/* Sends the operations. HF_OK: answered, and work->answer is to be freed. HF_UNKNOWN: no answer yet, or never. */
hf_status hfi_consul_work_ask(struct consul_work *work, enum consul_asked asked);
/* Makes sure that all that was asked so far is known: by its answer, or by settling it. */
hf_status hfi_consul_catch_up(struct consul_work *work);
/* It is held, by this entry; it is not; its place in the queue is given up. */
void hfi_consul_set_held(struct consul_work *work, const struct consul_entry *entry);
void hfi_consul_set_gone(struct consul_work *work);
void hfi_consul_set_left(struct consul_work *work);
/* What a look at the lock means for one who wants it. */
void hfi_consul_consider(struct consul_work *work, const struct consul_view *view);
/* The session is gone, and all that it had with it; or nobody needs it any more. */
void hfi_consul_drop_session(struct consul_work *work);

/* --- consul_done.c --- */

/* P/.done/NAME/mark */
void hfi_consul_done_key(char out[HFI_CONSUL_KEY_MAX], const struct consul_store *store, const char *name);
/* With request->once: has the mark read, as the last operation; and what its answer says. */
void hfi_consul_add_done(struct consul_work *work);
void hfi_consul_note_done(struct consul_work *work);
/* The value of a mark for request->done_ms from when the request was made, by the agent's clock, which is asked. */
hf_status hfi_consul_describe_done(struct consul_work *work, char out[HFI_CONSUL_VALUE_MAX]);
hf_status hfi_consul_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err);
hf_status hfi_consul_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);

/* --- consul_look.c --- */

/* Reads what is below the key. */
hf_status hfi_consul_get_tree(struct consul_store *store, const char *key, struct consul_answer *answer,
                              hfi_time deadline_ns, hf_error *err);

hf_status hfi_consul_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                             hf_error *err);
hf_status hfi_consul_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err);
hf_status hfi_consul_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);
hf_status hfi_consul_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err);

/* --- consul_doctor.c --- */

hf_status hfi_consul_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                             hf_error *err);

/* --- the store --- */

#define HFI_CONSUL_CROWDS 16

struct consul_store {
    const struct hfi_env *env;
    struct consul_config config;
    SSL_CTX *tls; /* NULL: no TLS */
    char host[65];
    int pid;
    pthread_mutex_t mutex;  /* guards all below; held while something is sent or read, never while it is waited for */
    pthread_cond_t changed; /* a session was made, or could not be */
    size_t preferred;       /* the host to ask */
    struct consul_connection *idle;
    size_t idle_count;
    struct consul_connection *late; /* with an answer to come that a lock has still to fetch */
    struct consul_session *sessions;
    uint32_t least_ttl_ms; /* that the server has for sessions, as far as it has told */
    int64_t clock_s;       /* the agent's clock at clock_ns, 0: not known */
    hfi_time clock_ns;
    bool answers; /* the last exchange was answered */
    int push, timer;
    hfi_time armed_ns; /* what the timer is set to */
    struct consul_call *calls;
    bool doubt; /* locks must be looked after now */
    struct consul_lock *placed;
    uint64_t crowded[HFI_CONSUL_CROWDS]; /* hashes of names that others wanted too when we last looked */
};

#endif
