/* SPDX-License-Identifier: MIT
 *
 * zookeeper.h: what the files of the zookeeper: engine share.
 *
 *     zookeeper.c           opening, closing, the table of functions
 *     zookeeper_url.c       the URL
 *     zookeeper_names.c     names and places in the tree, who comes before whom, marks: no exchange, no state
 *     zookeeper_session.c   one session: its connection, what it proves about time, its end
 *     zookeeper_drive.c     who reads the sockets, and how the others sleep meanwhile
 *     zookeeper_call.c      one question to the server and its answer
 *     zookeeper_queue.c     taking a place, looking, waiting, leaving
 *     zookeeper_renew.c     many locks in one exchange
 *     zookeeper_look.c      who holds what, what is done, forced release
 *     zookeeper_doctor.c    what in the way the ensemble is set up could lose a lock
 *
 * The client library is the one without threads (libzookeeper_st): it opens its sockets only when it is called, so that
 * they can be made close-on-exec and known to fork.c before anything else happens; it starts no thread that a forked
 * child would miss; and the caller's own thread makes its round trips. All calls of it are made with the store's mutex
 * and between hfi_fd_begin() and hfi_fd_end(), since it keeps a little state for all handles of the process.
 */
#ifndef HFI_ZOOKEEPER_H
#define HFI_ZOOKEEPER_H

#include "engine.h"
#include <pthread.h>
#include <zookeeper/zookeeper.h>

#define HFI_ZOOKEEPER_PREFIX_MAX 200
#define HFI_ZOOKEEPER_NODE_MAX 80
#define HFI_ZOOKEEPER_PATH_MAX (HFI_ZOOKEEPER_PREFIX_MAX + HFI_NAME_ENCODED_MAX + HFI_ZOOKEEPER_NODE_MAX + 4)
#define HFI_ZOOKEEPER_DATA_MAX 440
#define HFI_ZOOKEEPER_MARK_MAX (HFI_ZOOKEEPER_DATA_MAX + 44)
/* As many as hfi_waker_sleep() takes descriptors. */
#define HFI_ZOOKEEPER_SESSIONS_MOST 8
/* The longest session that is asked for: a day. The library doubles the number, in an int. */
#define HFI_ZOOKEEPER_SESSION_MOST_MS 86400000
#define HFI_ZOOKEEPER_TOUCHES 8
#define HFI_ZOOKEEPER_BATCH 128
/* Who broke a lock is for people, and its loss is not kept back for longer until that is known. */
#define HFI_ZOOKEEPER_BREAKER_MOST (100 * HFI_MS)

/* --- configuration --- */

struct zookeeper_config {
    char *hosts;                           /* "host:port,host:port", as the user wrote them, ports added */
    char *credentials;                     /* "user:password" for the scheme "digest"; NULL: none */
    char prefix[HFI_ZOOKEEPER_PREFIX_MAX]; /* "/holdfast" */
    bool kazoo;                            /* node names as kazoo writes them, not as Curator does */
    bool creator_only;                     /* nodes are for this user alone */
    uint32_t session_ms;                   /* 0: by the lock's time-to-live */
};

hf_status hfi_zookeeper_config_read(struct zookeeper_config *config, const struct hfi_url *url, hf_error *err);
void hfi_zookeeper_config_free(struct zookeeper_config *config);

/* --- names and places --- */

/* NAME as one component of a path, injectively. ZooKeeper refuses more than a file system does. */
void hfi_zookeeper_name_encode(char *out, const char *name);
bool hfi_zookeeper_name_decode(char *out, const char *text);
/* False if ZooKeeper would refuse it. */
bool hfi_zookeeper_component_check(const char *text, size_t length);

/* "/prefix/NAME" and "/prefix/NAME/node". */
void hfi_zookeeper_directory(char *out, const struct zookeeper_config *config, const char *name);
void hfi_zookeeper_path(char *out, const struct zookeeper_config *config, const char *name, const char *node);

/* "/prefix/.done", where the marks are that work is done, and that of `name` in it. No lock has such a name. */
void hfi_zookeeper_marks(char *out, const struct zookeeper_config *config);
void hfi_zookeeper_mark_path(char *out, const struct zookeeper_config *config, const char *name);

struct zookeeper_mark {
    uint64_t token;
    int64_t ago_ms, left_ms; /* since when, and for how long still */
    char *who;               /* "host pid note" */
};

void hfi_zookeeper_mark_write(char out[HFI_ZOOKEEPER_MARK_MAX], uint64_t for_ms, uint64_t token, const char *who);
/* What the mark says at `now_ms`, by the clock of the servers, which wrote it at stat->mtime. False: its time is over,
 * or it is none. */
bool hfi_zookeeper_mark_read(struct zookeeper_mark *out, char *data, const struct Stat *stat, int64_t now_ms);

/* Who broke a lock is said in the data of its directory, of the node that held it then. NULL: not of `node`. */
void hfi_zookeeper_breaker_write(char out[HFI_ZOOKEEPER_DATA_MAX], const char *node, const char *by);
const char *hfi_zookeeper_breaker_read(const char *data, const char *node);
/* Whether that is what it says, of whichever node. */
bool hfi_zookeeper_is_breaker(const char *data);

/* The part of a node's name that is unique to one attempt of one owner, and what goes between it and the number. */
void hfi_zookeeper_node_prefix(char *out, const struct zookeeper_config *config, struct hfi_owner owner,
                               unsigned incarnation);

/* The number that the server put at the end of `node`; false: it is nobody who waits for the lock. */
bool hfi_zookeeper_sequence(const char *node, int32_t *sequence);
/* Numbers go round: true if `a` was given out before `b`, as long as they are not half a circle apart. */
bool hfi_zookeeper_is_before(int32_t a, int32_t b);

struct zookeeper_children {
    size_t count;
    char **names; /* one allocation, texts included */
};

/* Whether another node may come to stand in its place, with the same number: a write lock of Curator's becomes a read
 * lock in that way. Whoever else comes in later has a greater number. */
bool hfi_zookeeper_may_be_replaced(const char *node);

/* Keeps those who wait for the lock, of whatever client, in the order in which they are served. */
void hfi_zookeeper_line_up(struct zookeeper_children *children);

/* --- sessions --- */

struct zookeeper_store;
struct zookeeper_lock;
struct zookeeper_call;

/* One request that was answered. */
struct zookeeper_touch {
    hfi_time sent_ns, answered_ns;
};

struct zookeeper_session {
    struct zookeeper_session *next;
    struct zookeeper_store *store;
    zhandle_t *zh;
    int32_t asked_ms;   /* the time-out that was asked for */
    int32_t timeout_ms; /* the one that the server gave */
    int fd;             /* of the library's socket; -1: none now */
    short wants;        /* what it is polled for */
    bool connected;     /* requests can be sent */
    bool dead;          /* expired: the servers have removed its nodes */
    bool refused;       /* … or never let in */
    bool starved;       /* no descriptor was left for its socket */
    unsigned failures;  /* of connections, other than by silence */
    unsigned misses;    /* connections in a row that came to nothing */
    unsigned calls;     /* that are not answered yet */
    unsigned waiting;   /* locks that wait */
    unsigned users;     /* locks, and threads without one */
    struct zookeeper_lock *locks;
    struct zookeeper_call *all_calls; /* answered or not, that nobody has freed */
    hfi_time due_ns;                  /* when it must be looked after even without news */
    hfi_time silent_ns;               /* since when the server owes us something; HFI_NEVER: it does not */
    hfi_time last_sent_ns;            /* the last request of ours */
    /* What is certain about time; see zookeeper_session.c. */
    hfi_time introduced_ns; /* when the connection presented the session */
    hfi_time proven_ns;     /* the leader counts the time-out from then, or later */
    struct zookeeper_touch touches[HFI_ZOOKEEPER_TOUCHES];
    size_t touch_count;
};

enum zookeeper_state {
    ZOOKEEPER_NEW,
    ZOOKEEPER_UNSURE,  /* a node may have been made: look for it */
    ZOOKEEPER_QUEUED,  /* has a node */
    ZOOKEEPER_NEXT_UP, /* has a node, and the one before it, which held the lock, is gone */
    ZOOKEEPER_HELD
};

/* All of it with the store's mutex. */
struct zookeeper_lock {
    struct zookeeper_session *session; /* NULL: none yet */
    struct zookeeper_lock *next;       /* in the session's list */
    struct hfi_owner owner;
    const char *name; /* the request's: lives as long as this lock does */
    enum zookeeper_state state;
    unsigned incarnation;              /* a new session begins with a new one */
    char node[HFI_ZOOKEEPER_NODE_MAX]; /* its name, with the number */
    int64_t czxid;                     /* 0: the node was found again, and not looked at yet */
    /* What was asked for when a deadline came. The answer is taken when it is there: a client in a hurry would
     * otherwise ask for ever, and never wait long enough. */
    struct zookeeper_call *search[2], *removal;
    bool marked;        /* there was a mark, of whatever age, when it was last looked for */
    bool leaves;        /* its node was to be deleted, and may be at any moment: it holds nothing by it any more */
    char *watched;      /* the path of the node before it; allocated */
    bool behind_holder; /* … which is the first */
    bool news;          /* something happened to it */
    /* Its own node is watched too, by the connection that was introduced then; 0: it is not. The server tells in order,
     * so whoever hears that the holder has gone would have heard before that its own node has. */
    hfi_time own_watched_ns;
    bool gone;                      /* somebody has deleted its node */
    bool told;                      /* its loss was reported */
    struct zookeeper_call *breaker; /* who that was is asked for, before it is reported; */
    hfi_time tell_by_ns;            /* but not for longer than until then */
    struct hfi_waker *waker;
};

/* All with the mutex. */
void hfi_zookeeper_session_close(struct zookeeper_session *session, hfi_time deadline_ns);
/* Lets the library do what is to be done, with the revents of its socket; without blocking. */
void hfi_zookeeper_session_step(struct zookeeper_session *session, short revents);
void hfi_zookeeper_session_sent(struct zookeeper_session *session, hfi_time now_ns);
void hfi_zookeeper_session_answered(struct zookeeper_session *session, hfi_time sent_ns, bool write);
/* The servers have ended it: its locks are lost. */
void hfi_zookeeper_session_expire(struct zookeeper_session *session);
/* For how long from `from_ns` on the session is certain to live; at most `most_ms`. */
uint32_t hfi_zookeeper_session_valid_ms(const struct zookeeper_session *session, hfi_time from_ns, uint32_t most_ms);
/* Connects anew, which proves that it lives. */
hf_status hfi_zookeeper_session_prove(struct zookeeper_session *session, hfi_time deadline_ns, hf_error *err);

/* A connected session for locks with that time-to-live, with one user more; NULL unless HF_OK. */
hf_status hfi_zookeeper_session_borrow(struct zookeeper_store *store, uint32_t ttl_ms, struct zookeeper_session **out,
                                       hfi_time deadline_ns, hf_error *err);
void hfi_zookeeper_session_give_back(struct zookeeper_session *session);
/* Puts the lock into such a session; into another one than before if that has ended. And takes it out. */
hf_status hfi_zookeeper_session_join(struct zookeeper_store *store, struct zookeeper_lock *lock, uint32_t ttl_ms,
                                     hfi_time deadline_ns, hf_error *err);
void hfi_zookeeper_session_leave(struct zookeeper_lock *lock);

/* --- the store --- */

struct zookeeper_store {
    const struct hfi_env *env;
    struct zookeeper_config config;
    pthread_mutex_t mutex; /* guards all below, and all calls of the library */
    pthread_cond_t changed;
    char *addresses; /* of the hosts, as numbers */
    unsigned address_count;
    bool look_up_again; /* none of them answered */
    struct zookeeper_session *sessions;
    size_t session_count;
    int push;          /* epoll: the sockets, while nobody is on duty, and the timer */
    int timer;         /* timerfd: when a session must be looked after, or losses are to be told */
    hfi_time timer_ns; /* when it will ring */
    bool on_duty;      /* some thread listens to all sockets */
    char who[300];     /* "host pid", in the data of our nodes */
};

/* Locks the mutex; looks the addresses up again first, if none of them answered the last time. */
void hfi_zookeeper_enter(struct zookeeper_store *store);

/* Sees to one session, without blocking, if there is something to be seen to. */
void hfi_zookeeper_look_after(struct zookeeper_session *session);
/* Sleeps, with the mutex, until over(arg) or the deadline, and sees to all sockets meanwhile if nobody else does. */
bool hfi_zookeeper_await(struct zookeeper_store *store, bool (*over)(const void *arg), const void *arg,
                         hfi_time deadline_ns);
/* The same for a lock that waits, on its waker. */
bool hfi_zookeeper_await_news(struct zookeeper_store *store, struct zookeeper_lock *lock, struct hfi_waker *waker,
                              hfi_time deadline_ns);
int hfi_zookeeper_push_fd(void *memory);
void hfi_zookeeper_take_push(void *memory);
/* The keeper has something to tell. */
void hfi_zookeeper_call_keeper(struct zookeeper_store *store);
/* The push connection listens to the session's new socket. */
void hfi_zookeeper_hear_socket(struct zookeeper_session *session);

/* --- calls --- */

struct zookeeper_call {
    struct zookeeper_session *session;
    struct zookeeper_call *next, *prev; /* in the session's list of all */
    hfi_time sent_ns;
    bool write, done, abandoned;
    bool for_keeper; /* … waits for it */
    int rc;
    struct Stat stat;
    char text[HFI_ZOOKEEPER_PATH_MAX]; /* a path, or data */
    struct zookeeper_children children;
    size_t result_count;
    zoo_op_result_t results[]; /* of a transaction */
};

/* Each sends one request; NULL: no memory. `await` waits for the answers to `count` of them; what has not come by the
 * deadline counts as ZOPERATIONTIMEOUT. `free` takes NULL, and calls that are not answered yet. */
struct zookeeper_call *hfi_zookeeper_create(struct zookeeper_session *session, const char *path, const char *data,
                                            int mode);
struct zookeeper_call *hfi_zookeeper_delete(struct zookeeper_session *session, const char *path);
struct zookeeper_call *hfi_zookeeper_list(struct zookeeper_session *session, const char *path);
struct zookeeper_call *hfi_zookeeper_get(struct zookeeper_session *session, const char *path, bool watch);
/* A line for each entry in its text: "31 world anyone". */
struct zookeeper_call *hfi_zookeeper_get_acl(struct zookeeper_session *session, const char *path);
struct zookeeper_call *hfi_zookeeper_sync(struct zookeeper_session *session, const char *path);
struct zookeeper_call *hfi_zookeeper_check(struct zookeeper_session *session, const char *const *paths, size_t count);
/* Takes the data out of a node if it has this version; -1: whichever it has. */
struct zookeeper_call *hfi_zookeeper_empty(struct zookeeper_session *session, const char *path, int32_t version);
/* The clock of the servers, as stat.mtime: they tell it to whoever writes, so to the directory of the marks. */
struct zookeeper_call *hfi_zookeeper_ask_time(struct zookeeper_session *session);
/* Writes `data` to `mark`, a new node unless it `exists`, and deletes a node: both or neither. */
struct zookeeper_call *hfi_zookeeper_mark_and_delete(struct zookeeper_session *session, const char *mark, bool exists,
                                                     const char *data, const char *path);
void hfi_zookeeper_await_calls(struct zookeeper_store *store, struct zookeeper_call **calls, size_t count,
                               hfi_time deadline_ns);
void hfi_zookeeper_call_free(struct zookeeper_call *call);
/* Asks who has broken a lock; and the answer, NULL if it is not known, or not yet. */
struct zookeeper_call *hfi_zookeeper_ask_breaker(const struct zookeeper_lock *lock);
const char *hfi_zookeeper_breaker_of(const struct zookeeper_call *call, const struct zookeeper_lock *lock);
/* Waits for one, and gives its rc. */
int hfi_zookeeper_answer(struct zookeeper_call *call, hfi_time deadline_ns);
/* A request whose answer nobody waits for: it shows that we are there. */
void hfi_zookeeper_beat(struct zookeeper_session *session);

/* True if the server has not answered. */
bool hfi_zookeeper_is_lost(int rc);
hf_status hfi_zookeeper_refusal(const struct zookeeper_store *store, int rc, const char *what, hf_error *err);
hf_status hfi_zookeeper_no_memory(hf_error *err);
/* Makes the directory of `name` and those above it. */
int hfi_zookeeper_make_directories(struct zookeeper_session *session, const char *directory, hfi_time deadline_ns);

/* --- the functions of the engine --- */

hf_status hfi_zookeeper_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                                struct hfi_grant *grant, hf_error *err);
hf_status hfi_zookeeper_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);
hf_status hfi_zookeeper_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err);
hf_status hfi_zookeeper_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                              hf_error *err);
hf_status hfi_zookeeper_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err);
hf_status hfi_zookeeper_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                    hf_error *err);
hf_status hfi_zookeeper_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg,
                                     hfi_time deadline_ns, hf_error *err);
hf_status hfi_zookeeper_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);
hf_status hfi_zookeeper_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);
hf_status hfi_zookeeper_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                                hf_error *err);

#endif
