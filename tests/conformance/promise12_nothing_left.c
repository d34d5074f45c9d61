/* SPDX-License-Identifier: MIT
 *
 * Promise 12, nothing left behind: by waiters that give up or die, by clients that close, by many rounds, across fork()
 * and exec().
 */
#include "conformance.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

PROMISE(p12_a_cancelled_waiter_blocks_nobody, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *quitter = open_client(), *other = open_client();
    struct waiter first, second;
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    waiter_start(&first, quitter, name.text, NULL);
    await_waiters(holder, name.text, 1);
    waiter_start(&second, other, name.text, NULL);
    await_waiters(holder, name.text, 2);
    CHECK_STATUS(HF_OK, hf_cancel(quitter, name.text), NULL);
    waiter_join(&first, HF_CANCELED);
    must_release(lock);
    waiter_finish(&second);
    check_becomes_free(holder, name.text);
    hf_close(holder);
    hf_close(quitter);
    hf_close(other);
}

PROMISE(p12_a_waiter_that_gave_up_blocks_nobody, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *quitter = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct waiter waiter;
    hf_lock *none = NULL, *lock = must_acquire(holder, name.text, NULL);
    options.wait_ms = 20;
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, quitter, name.text, &options, NULL), NULL);
    waiter_start(&waiter, other, name.text, NULL);
    await_waiters(holder, name.text, 1);
    must_release(lock);
    waiter_finish(&waiter);
    check_becomes_free(quitter, name.text);
    hf_close(holder);
    hf_close(quitter);
    hf_close(other);
}

PROMISE(p12_a_killed_waiter_blocks_nobody, HF_CAP_PROCESSES)
{
    struct holder *doomed = holder_new("x");
    doomed->options.ttl_ms = ttl_ms_of_the_doomed();
    hf_client *holder = open_client(), *other = open_client();
    struct waiter waiter;
    /* A server that has not noticed the death yet may give it the lock, and then takes up to a time-to-live to give it
     * to the next. */
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 2 * short_ttl_ms();
    hf_lock *lock = must_acquire(holder, doomed->name.text, &options);
    pid_t pid = holder_launch(doomed);
    await_waiters(holder, doomed->name.text, 1);
    waiter_start(&waiter, other, doomed->name.text, NULL);
    await_waiters(holder, doomed->name.text, 2);
    helper_kill(pid);
    must_release(lock);
    waiter_finish(&waiter);
    check_becomes_free(holder, doomed->name.text);
    hf_close(holder);
    hf_close(other);
}

/* --- close --- */

PROMISE(p12_closing_releases_what_is_held, 0)
{
    enum { COUNT = 20 };
    hf_client *client = open_client(), *other = open_client();
    struct name names[COUNT];
    struct loss loss = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *locks[COUNT];
    record_loss(&options, &loss);
    for (unsigned i = 0; i < COUNT; i++) {
        names[i] = numbered_name("x", i);
        locks[i] = must_acquire(client, names[i].text, &options);
    }
    hf_close(client);
    for (unsigned i = 0; i < COUNT; i++) {
        check_free(other, names[i].text);
        CHECK(hf_remaining_ms(locks[i]) <= 0);
        CHECK_STATUS(HF_LOST, hf_release(locks[i], NULL), NULL);
    }
    hf_close(other);
}

PROMISE(p12_closing_ends_all_waits, 0)
{
    enum { COUNT = 4 };
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *client = open_client_with_handoff(-1);
    struct waiter waiters[COUNT];
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    for (int i = 0; i < COUNT; i++) {
        waiter_start(&waiters[i], client, name.text, NULL);
        await_waiters(holder, name.text, i + 1);
    }
    hf_close(client);
    for (int i = 0; i < COUNT; i++)
        waiter_join(&waiters[i], HF_CANCELED);
    must_release(lock);
    check_becomes_free(holder, name.text);
    hf_close(holder);
}

/* Where a lock is bound to a connection it makes four hundred of them. */
PROMISE_LIMIT(p12_two_hundred_locks_at_once, 0, 60)
{
    enum { COUNT = 200 };
    hf_client *client = open_client(), *other = open_client();
    struct name *names = calloc(COUNT, sizeof *names);
    hf_lock *locks[COUNT];
    REQUIRE(names != NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        names[i] = numbered_name("crowd", i);
        locks[i] = must_acquire(client, names[i].text, NULL);
    }
    for (unsigned i = 0; i < COUNT; i++)
        check_busy(other, names[i].text);
    for (unsigned i = 0; i < COUNT; i++)
        must_release(locks[(i * 37) % COUNT]);
    for (unsigned i = 0; i < COUNT; i++)
        check_free(other, names[i].text);
    free(names);
    hf_close(client);
    hf_close(other);
}

/* --- growth --- */

/* Calls `each` for every open descriptor. */
static int each_descriptor(bool (*each)(int fd))
{
    int count = 0;
    DIR *list = opendir("/proc/self/fd");
    REQUIRE(list != NULL);
    struct dirent *entry;
    while ((entry = readdir(list))) {
        const int fd = (int)strtol(entry->d_name, NULL, 10);
        if (*entry->d_name != '.' && fd != dirfd(list))
            count += each(fd);
    }
    closedir(list);
    return count;
}

static bool count_it(int fd)
{
    return fd >= 0;
}

/* What goes on in the background may have one open for a moment; what is lost stays open. */
static void await_descriptors(int most)
{
    while (each_descriptor(count_it) > most)
        await_a_moment();
}

/* Less than the smallest piece of memory takes, which is 32 bytes, and far less than a round uses. */
#define HEAP_SLACK 8

/* All that was allocated and not freed, large pieces too. */
static size_t heap_in_use(void)
{
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

PROMISE_LIMIT(p12_a_thousand_rounds_leave_no_descriptors_and_no_memory, 0, 60)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    for (int i = 0; i < 10; i++)
        must_release(must_acquire(client, name.text, NULL));
    const int descriptors = each_descriptor(count_it);
    /* Buffers grow in steps with how far a server lags behind, and are kept; what each round loses is twice as much in
     * twice as many. */
    size_t rounds = 500, before, after = heap_in_use();
    do {
        before = after;
        rounds *= 2;
        for (size_t i = 0; i < rounds; i++)
            must_release(must_acquire(client, name.text, NULL));
        await_descriptors(descriptors + 2); /* the keeper, should a busy machine need it only now */
        after = heap_in_use();
    } while (after > before + HEAP_SLACK * rounds && rounds < 8000);
    CHECK(after <= before + HEAP_SLACK * rounds);
    hf_close(client);
}

PROMISE(p12_many_names_and_failed_waits_leave_no_descriptors, 0)
{
    hf_client *client = open_client(), *other = open_client();
    struct name held = unique_name("held");
    hf_lock *lock = must_acquire(other, held.text, NULL), *none = NULL;
    hf_options options = HF_OPTIONS_INIT;
    int descriptors = 0;
    for (unsigned i = 0; i < 300; i++) {
        /* What a wait sleeps with is kept for the next one; a slow store may answer too late for any sleep at all. */
        options.wait_ms = i < 10 ? 50 : 1;
        struct name name = numbered_name("x", i);
        must_release(must_acquire(client, name.text, NULL));
        CHECK_STATUS(HF_TIMEOUT, hf_acquire(&none, client, held.text, &options, NULL), NULL);
        check_busy(client, held.text);
        if (i == 10)
            descriptors = each_descriptor(count_it);
    }
    /* A connection to listen on, and one for the keeper, are made when they are first needed, which may be later than
     * in the tenth round; and so is the keeper itself, to which is left what a machine that stood still had no time
     * for. */
    await_descriptors(descriptors + 2);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

PROMISE(p12_clients_that_come_and_go_leave_no_descriptors, 0)
{
    struct name name = unique_name("x");
    int descriptors = 0;
    for (int i = 0; i < 50; i++) {
        hf_client *client = open_client();
        must_release(must_acquire(client, name.text, NULL));
        hf_close(client);
        if (i == 0)
            descriptors = each_descriptor(count_it);
    }
    await_descriptors(descriptors);
}

static bool survives_exec(int fd)
{
    int flags = fcntl(fd, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC);
}

PROMISE(p12_every_descriptor_is_close_on_exec, 0)
{
    struct name name = unique_name("x");
    int before = each_descriptor(survives_exec);
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, name.text, NULL);
    struct waiter waiter;
    waiter_start(&waiter, other, name.text, NULL);
    await_waiters(client, name.text, 1);
    CHECK(hf_lost_fd(lock) >= 0);
    CHECK_INT(before, each_descriptor(survives_exec));
    must_release(lock);
    waiter_finish(&waiter);
    CHECK_INT(before, each_descriptor(survives_exec));
    hf_close(client);
    hf_close(other);
}
