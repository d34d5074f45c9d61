/* SPDX-License-Identifier: MIT
 *
 * test_push.c: those who wait on one push connection, as threads or parked: whoever listens, each message comes to the
 * one that it is for, and there is always one that listens.
 */
#include "core.h"
#include "engines/push.h"
#include "memory.h"
#include "test.h"
#include "waker.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE (20 * HFI_MS)
#define MANY 1000

static const struct hfi_env env = { .now_ns = hfi_now_ns };

/* A store that says numbers, one after the other, on a pipe. */
struct store {
    pthread_mutex_t mutex;
    struct hfi_push push;
    int out; /* the end that it writes to */
    unsigned heard, looked;
    hfi_time look_every; /* 0: never */
};

struct member {
    struct hfi_waiter waiter;
    struct store *store;
    struct hfi_waker *waker;
    struct hfi_waker parked; /* used if `parks` */
    bool parks;
    _Atomic unsigned calls; /* of it */
    hfi_time deadline_ns;
    hf_status status; /* of its wait */
    bool over;        /* which has ended */
    unsigned messages;
    pthread_t thread;
};

static struct member *member_of(const struct hfi_waiter *waiter)
{
    return HFI_WAITER_OF(struct member, waiter, waiter);
}

static bool has_news(const struct hfi_waiter *waiter)
{
    return member_of(waiter)->messages > 0;
}

static void hear(struct hfi_push *push)
{
    struct store *store = HFI_WAITER_OF(struct store, push, push);
    uint64_t id;
    store->heard++;
    while (read(push->fd, &id, sizeof id) == sizeof id) {
        struct hfi_waiter *waiter = hfi_push_find(push, id);
        if (!waiter)
            continue;
        member_of(waiter)->messages++;
        hfi_push_call(push, waiter);
    }
    store->looked += push->look_ns <= hfi_now_ns();
    if (store->look_every)
        hfi_push_look_at(push, hfi_now_ns() + store->look_every);
}

static void connect_store(struct store *store)
{
    int ends[2];
    REQUIRE_INT(0, pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    store->out = ends[1];
    hfi_push_connected(&store->push, ends[0], HFI_NEVER);
}

static void disconnect_store(struct store *store)
{
    close(store->out);
    close(store->push.fd);
    hfi_push_broken(&store->push);
}

static void open_store(struct store *store)
{
    *store = (struct store){ .mutex = PTHREAD_MUTEX_INITIALIZER };
    hfi_push_init(&store->push, &env, &store->mutex, -1, has_news, hear);
    connect_store(store);
}

static void close_store(struct store *store)
{
    CHECK(!store->push.first && !store->push.count && !store->push.listener);
    CHECK(!store->push.threads.first && !store->push.parked.first);
    if (store->push.fd >= 0)
        disconnect_store(store);
    hfi_push_free(&store->push);
}

static void say(const struct store *store, uint64_t id)
{
    REQUIRE_INT(sizeof id, write(store->out, &id, sizeof id));
}

static void await_a_moment(void)
{
    usleep(100);
}

/* --- who waits --- */

static void count_call(struct hfi_waker *waker)
{
    atomic_fetch_add(&HFI_WAITER_OF(struct member, parked, waker)->calls, 1);
}

static void join(struct member *member, struct store *store, uint64_t id, bool parks)
{
    *member = (struct member){ .store = store, .waker = hfi_waker_new(), .parks = parks, .deadline_ns = HFI_NEVER };
    REQUIRE(member->waker != NULL);
    member->waiter.ask_again_ns = HFI_NEVER;
    member->parked.woken = count_call;
    pthread_mutex_lock(&store->mutex);
    hfi_push_add(&store->push, &member->waiter, id);
    pthread_mutex_unlock(&store->mutex);
}

static void part(struct member *member)
{
    pthread_mutex_lock(&member->store->mutex);
    hfi_push_remove(&member->waiter);
    pthread_mutex_unlock(&member->store->mutex);
    hfi_waker_free(member->waker);
}

static hf_status await_news(struct member *member)
{
    const struct hfi_request request = { .waker = member->waker,
                                         .parked = member->parks ? &member->parked : NULL,
                                         .deadline_ns = member->deadline_ns };
    pthread_mutex_lock(&member->store->mutex);
    member->status = hfi_push_wait(&member->store->push, &member->waiter, &request);
    member->over = member->status != HFI_PARKED;
    pthread_mutex_unlock(&member->store->mutex);
    return member->status;
}

static void *wait_in_thread(void *argument)
{
    await_news(argument);
    return NULL;
}

/* Returns when it sleeps, or has. */
static void start(struct member *member)
{
    REQUIRE_INT(0, pthread_create(&member->thread, NULL, wait_in_thread, member));
    for (bool asleep = false; !asleep; await_a_moment()) {
        pthread_mutex_lock(&member->store->mutex);
        asleep = member->waiter.waker || member->over;
        pthread_mutex_unlock(&member->store->mutex);
    }
}

static void finish(struct member *member, hf_status status)
{
    pthread_join(member->thread, NULL);
    CHECK_INT(status, member->status);
}

static const struct hfi_waiter *listener_of(struct store *store)
{
    pthread_mutex_lock(&store->mutex);
    const struct hfi_waiter *listener = store->push.listener;
    pthread_mutex_unlock(&store->mutex);
    return listener;
}

static void await_listener(struct store *store, const struct member *member)
{
    while (listener_of(store) != &member->waiter)
        await_a_moment();
}

/* Nobody has woken it in vain. */
static void check_not_woken(const struct member *member)
{
    CHECK(!hfi_waker_sleep(member->waker, NULL, 0, hfi_now_ns()));
}

/* --- one listens for all --- */

TEST(a_message_comes_to_the_one_that_it_is_for)
{
    struct store store;
    struct member members[3];
    open_store(&store);
    for (uint64_t i = 0; i < 3; i++) {
        join(&members[i], &store, i + 1, false);
        start(&members[i]);
    }
    CHECK(listener_of(&store) == &members[0].waiter);
    say(&store, 77); /* nobody's */
    say(&store, 2);
    finish(&members[1], HF_OK);
    say(&store, 1); /* the listener's own, which is not woken for that */
    finish(&members[0], HF_OK);
    check_not_woken(&members[0]);
    await_listener(&store, &members[2]);
    say(&store, 3);
    finish(&members[2], HF_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(1, members[i].messages);
        part(&members[i]);
    }
    close_store(&store);
}

TEST(what_comes_while_nobody_listens_is_there)
{
    struct store store;
    struct member one, other;
    open_store(&store);
    join(&one, &store, 1, false);
    join(&other, &store, 2, true);
    say(&store, 2);
    say(&store, 1);
    CHECK_INT(HF_OK, await_news(&one));
    CHECK_INT(HF_OK, await_news(&other)); /* by the one that listened */
    part(&one);
    part(&other);
    close_store(&store);
}

TEST(whoever_listens_is_followed_by_another_when_its_time_is_over)
{
    struct store store;
    struct member first, second, third;
    open_store(&store);
    join(&first, &store, 1, false);
    join(&second, &store, 2, false);
    join(&third, &store, 3, false);
    first.deadline_ns = hfi_now_ns() + PATIENCE;
    second.waiter.ask_again_ns = hfi_now_ns() + 2 * PATIENCE;
    start(&first);
    start(&second);
    start(&third);
    finish(&first, HF_TIMEOUT);
    CHECK(hfi_now_ns() >= first.deadline_ns);
    finish(&second, HF_OK); /* it is to ask */
    CHECK(hfi_now_ns() >= second.waiter.ask_again_ns);
    say(&store, 3);
    finish(&third, HF_OK);
    part(&first);
    part(&second);
    part(&third);
    close_store(&store);
}

/* The listener is called back while a message lies there that is another one's. */
TEST(a_listener_that_is_cancelled_loses_nothing)
{
    for (int round = 0; round < 100; round++) {
        struct store store;
        struct member first, second;
        open_store(&store);
        join(&first, &store, 1, false);
        join(&second, &store, 2, false);
        start(&first);
        start(&second);
        pthread_mutex_lock(&store.mutex);
        if (round & 1)
            say(&store, 2);
        hfi_waker_call_back(first.waker);
        if (!(round & 1))
            say(&store, 2);
        pthread_mutex_unlock(&store.mutex);
        finish(&first, HF_OK);
        finish(&second, HF_OK);
        CHECK_INT(1, second.messages);
        part(&first);
        part(&second);
        close_store(&store);
    }
}

TEST(when_the_connection_breaks_all_are_to_ask)
{
    struct store store;
    struct member members[4];
    open_store(&store);
    for (uint64_t i = 0; i < 4; i++) {
        join(&members[i], &store, i + 1, i == 3);
        if (i < 3)
            start(&members[i]);
    }
    CHECK_INT(HFI_PARKED, await_news(&members[3]));
    pthread_mutex_lock(&store.mutex);
    disconnect_store(&store);
    connect_store(&store); /* at once */
    pthread_mutex_unlock(&store.mutex);
    for (int i = 0; i < 3; i++)
        finish(&members[i], HF_OK);
    CHECK(members[3].calls > 0);
    CHECK_INT(HF_OK, await_news(&members[3]));
    say(&store, 1); /* lost for those who have not lined up anew */
    CHECK_INT(HF_OK, await_news(&members[0]));
    CHECK_INT(0, members[0].messages);
    pthread_mutex_lock(&store.mutex);
    hfi_push_add(&store.push, &members[0].waiter, 1);
    pthread_mutex_unlock(&store.mutex);
    CHECK_INT(HF_OK, await_news(&members[0]));
    CHECK_INT(1, members[0].messages);
    for (int i = 0; i < 4; i++)
        part(&members[i]);
    close_store(&store);
}

TEST(a_connection_that_says_nothing_is_looked_after_by_the_listener_alone)
{
    struct store store;
    struct member first, second;
    open_store(&store);
    join(&first, &store, 1, false);
    join(&second, &store, 2, false);
    start(&first);
    start(&second);
    pthread_mutex_lock(&store.mutex);
    store.look_every = HFI_MS;
    hfi_push_look_at(&store.push, hfi_now_ns()); /* sooner than the listener thought */
    pthread_mutex_unlock(&store.mutex);
    for (unsigned looked = 0; looked < 3; await_a_moment()) {
        pthread_mutex_lock(&store.mutex);
        looked = store.looked;
        pthread_mutex_unlock(&store.mutex);
    }
    check_not_woken(&second);
    say(&store, 2);
    say(&store, 1);
    finish(&first, HF_OK);
    finish(&second, HF_OK);
    part(&first);
    part(&second);
    close_store(&store);
}

/* --- without threads --- */

TEST(an_operation_is_parked_while_another_one_listens)
{
    struct store store;
    struct member thread, operation;
    open_store(&store);
    join(&thread, &store, 1, false);
    join(&operation, &store, 2, true);
    operation.deadline_ns = hfi_now_ns() + PATIENCE;
    CHECK_INT(HF_TIMEOUT, await_news(&operation)); /* it listened itself */
    CHECK_INT(HF_TIMEOUT, await_news(&operation));
    operation.deadline_ns = HFI_NEVER;
    operation.waiter.ask_again_ns = hfi_now_ns() + HFI_SECOND;
    start(&thread);
    CHECK_INT(HFI_PARKED, await_news(&operation));
    CHECK(operation.parked.until_ns == operation.waiter.ask_again_ns);
    CHECK_INT(HFI_PARKED, await_news(&operation)); /* for no reason */
    say(&store, 2);
    while (!operation.calls)
        await_a_moment();
    CHECK_INT(HF_OK, await_news(&operation));
    CHECK_INT(1, operation.messages);
    say(&store, 1);
    finish(&thread, HF_OK);
    CHECK_INT(1, operation.calls);
    part(&thread);
    part(&operation);
    close_store(&store);
}

TEST(the_duty_goes_to_a_thread_before_an_operation_and_from_one_that_leaves_to_the_next)
{
    struct store store;
    struct member threads[2], parked[3];
    open_store(&store);
    join(&threads[0], &store, 1, false);
    start(&threads[0]);
    for (uint64_t i = 0; i < 3; i++) {
        join(&parked[i], &store, 10 + i, true);
        CHECK_INT(HFI_PARKED, await_news(&parked[i]));
    }
    join(&threads[1], &store, 2, false);
    start(&threads[1]);
    say(&store, 1);
    finish(&threads[0], HF_OK);
    await_listener(&store, &threads[1]);
    CHECK_INT(0, parked[0].calls + parked[1].calls + parked[2].calls);
    say(&store, 2);
    finish(&threads[1], HF_OK);
    CHECK_INT(1, parked[0].calls); /* it is to listen */
    CHECK_INT(0, parked[1].calls);
    part(&parked[0]); /* but was cancelled */
    CHECK_INT(1, parked[1].calls);
    say(&store, 12);
    parked[1].deadline_ns = hfi_now_ns() + PATIENCE;
    CHECK_INT(HF_TIMEOUT, await_news(&parked[1])); /* on its runner's thread; the next is called for two reasons */
    CHECK(parked[2].calls > 0);
    CHECK_INT(HF_OK, await_news(&parked[2]));
    for (int i = 0; i < 2; i++) {
        part(&threads[i]);
        part(&parked[1 + i]);
    }
    close_store(&store);
}

TEST(who_is_cancelled_or_late_is_not_parked)
{
    struct store store;
    struct member thread, operation;
    open_store(&store);
    join(&thread, &store, 1, false);
    join(&operation, &store, 2, true);
    start(&thread);
    operation.deadline_ns = hfi_now_ns();
    CHECK_INT(HF_TIMEOUT, await_news(&operation));
    operation.deadline_ns = HFI_NEVER;
    operation.waiter.ask_again_ns = hfi_now_ns();
    CHECK_INT(HF_OK, await_news(&operation));
    operation.waiter.ask_again_ns = HFI_NEVER;
    hfi_waker_call_back(operation.waker);
    CHECK_INT(HF_OK, await_news(&operation));
    say(&store, 1);
    finish(&thread, HF_OK);
    part(&thread);
    part(&operation);
    close_store(&store);
}

/* --- many --- */

static void check_found(const struct store *store, const struct member *members)
{
    for (uint64_t id = 0; id <= 2 * MANY; id++) {
        const struct hfi_waiter *expected = NULL;
        for (int i = 0; i < MANY && id && !expected; i++)
            expected = members[i].waiter.push && members[i].waiter.id == id ? &members[i].waiter : NULL;
        REQUIRE(hfi_push_find(&store->push, id) == expected);
    }
}

static void find_many(long fault)
{
    struct store store;
    static struct member members[MANY];
    open_store(&store);
    for (int i = 0; i < MANY; i++) {
        members[i] = (struct member){ .store = &store };
        hfi_alloc_set_fault(i < 600 ? fault : 0); /* the table comes later, or never */
        hfi_push_add(&store.push, &members[i].waiter, i % 7 ? (uint64_t)i + 1 : 0);
        hfi_alloc_set_fault(0);
        if (i == 10 || i == 700)
            check_found(&store, members);
    }
    for (int i = 0; i < MANY; i += 7)
        hfi_push_address(&members[i].waiter, (uint64_t)(MANY + i));
    check_found(&store, members);
    for (int i = 0; i < MANY; i += 2)
        hfi_push_remove(&members[i].waiter);
    for (int i = 1; i < MANY; i += 14)
        hfi_push_address(&members[i].waiter, 0);
    check_found(&store, members);
    for (int i = 0; i < MANY; i++)
        hfi_push_remove(&members[i].waiter);
    close_store(&store);
}

TEST(each_is_found_by_what_its_messages_are_addressed_to)
{
    find_many(0);
    find_many(1);
}

/* Threads and operations, which two runners go on with when they are called. Each waits for one message after the
 * other, and some give up now and then. */
enum { THREADS = 3, OPERATIONS = 12, ROUNDS = 300 };

struct crowd {
    struct store store;
    struct member threads[THREADS], operations[OPERATIONS];
    _Atomic int wanted[THREADS + OPERATIONS + 1], got[THREADS + OPERATIONS + 1];
};

static void *take_messages(void *argument)
{
    struct crowd *crowd = argument;
    static _Atomic uint64_t next;
    const uint64_t id = atomic_fetch_add(&next, 1) % THREADS + 1;
    struct member *member = &crowd->threads[id - 1];
    while (crowd->got[id] < ROUNDS) {
        member->deadline_ns = hfi_now_ns() + (hfi_time)(id % 2 + 1) * HFI_MS;
        await_news(member);
        pthread_mutex_lock(&crowd->store.mutex);
        crowd->got[id] += (int)member->messages;
        member->messages = 0;
        pthread_mutex_unlock(&crowd->store.mutex);
    }
    return NULL;
}

/* Goes on with those of one half of the operations that were called, or have not begun. */
static void *run_operations(void *argument)
{
    struct crowd *crowd = argument;
    static _Atomic unsigned next;
    const unsigned half = atomic_fetch_add(&next, 1) % 2;
    for (int left = 1; left;) {
        left = 0;
        for (unsigned i = half; i < OPERATIONS; i += 2) {
            struct member *member = &crowd->operations[i];
            const uint64_t id = THREADS + 1 + i;
            left += crowd->got[id] < ROUNDS;
            if (!atomic_exchange(&member->calls, 0))
                continue;
            member->deadline_ns = hfi_now_ns() + 2 * HFI_MS;
            const hf_status status = await_news(member);
            pthread_mutex_lock(&crowd->store.mutex);
            crowd->got[id] += (int)member->messages;
            member->messages = 0;
            pthread_mutex_unlock(&crowd->store.mutex);
            if (status != HFI_PARKED)
                member->calls = 1; /* its next wait */
        }
    }
    return NULL;
}

TEST_LIMIT(in_a_crowd_no_message_is_lost, 60)
{
    static struct crowd crowd;
    pthread_t threads[THREADS + 2];
    open_store(&crowd.store);
    for (uint64_t i = 0; i < THREADS; i++)
        join(&crowd.threads[i], &crowd.store, i + 1, false);
    for (uint64_t i = 0; i < OPERATIONS; i++) {
        join(&crowd.operations[i], &crowd.store, THREADS + 1 + i, true);
        crowd.operations[i].calls = 1;
    }
    for (int i = 0; i < THREADS + 2; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, i < THREADS ? take_messages : run_operations, &crowd));
    /* The next is said when the last was taken: then it is known if one is lost. */
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t id = 1; id <= THREADS + OPERATIONS; id++)
            say(&crowd.store, id);
        for (uint64_t id = 1; id <= THREADS + OPERATIONS; id++) {
            while (crowd.got[id] <= round)
                await_a_moment();
        }
    }
    for (int i = 0; i < THREADS + 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        part(&crowd.threads[i]);
    for (int i = 0; i < OPERATIONS; i++)
        part(&crowd.operations[i]);
    close_store(&crowd.store);
}

/* A child has none of these threads, and leaves them alone. */
TEST(a_fork_changes_nothing_for_those_who_wait)
{
    struct store store;
    struct member first, second;
    int status;
    open_store(&store);
    join(&first, &store, 1, false);
    join(&second, &store, 2, true);
    start(&first);
    CHECK_INT(HFI_PARKED, await_news(&second));
    const pid_t child = fork();
    if (child == 0)
        test_exit_child();
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    say(&store, 2);
    while (!second.calls)
        await_a_moment();
    CHECK_INT(HF_OK, await_news(&second));
    say(&store, 1);
    finish(&first, HF_OK);
    part(&first);
    part(&second);
    close_store(&store);
}
