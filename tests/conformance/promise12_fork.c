/* SPDX-License-Identifier: MIT
 *
 * Promise 12, across fork(): the child holds nothing and touches nothing of the parent's.
 */
#include "conformance.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct inheritance {
    struct name name;
    hf_client *client;
    hf_lock *lock;
};

static void try_to_use(void *arg)
{
    struct inheritance *it = arg;
    hf_lock *none = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_acquire(&none, it->client, it->name.text, NULL, &err), &err);
    CHECK(none == NULL && *err.message != '\0');
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&none, it->client, it->name.text, NULL, NULL), NULL);
    CHECK_STATUS(HF_INVALID, hf_cancel(it->client, it->name.text), NULL);
    CHECK(hf_remaining_ms(it->lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_renew(it->lock, 0, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(it->lock, &err), &err);
    CHECK(*err.message != '\0');
    hf_close(it->client);
}

static void close_first(void *arg)
{
    struct inheritance *it = arg;
    hf_close(it->client);
    CHECK(hf_remaining_ms(it->lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(it->lock, NULL), NULL);
}

static void do_nothing(void *arg)
{
    (void)arg;
}

static void open_own_client(void *arg)
{
    struct inheritance *it = arg;
    struct name own = unique_name("own");
    hf_client *client = open_client();
    if (store_can(HF_CAP_PROCESSES))
        check_busy(client, it->name.text);
    must_release(must_acquire(client, own.text, NULL));
    hf_close(client);
}

static void check_child_disturbs_nothing(helper_fn child)
{
    struct inheritance it = { .name = unique_name("x"), .client = open_client() };
    hf_client *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    it.lock = must_acquire(it.client, it.name.text, &options);
    uint64_t token = hf_token(it.lock);
    for (int i = 0; i < 3; i++)
        helper_join(helper_start(child, &it));
    check_busy(other, it.name.text);
    CHECK(hf_remaining_ms(it.lock) > 0);
    CHECK_INT(token, hf_token(it.lock));
    CHECK_INT(0, gate_count(&loss.told));
    must_release(it.lock);
    check_free(other, it.name.text);
    hf_close(it.client);
    hf_close(other);
}

PROMISE(p12_a_child_cannot_use_what_it_inherited, 0)
{
    check_child_disturbs_nothing(try_to_use);
}

PROMISE(p12_a_child_may_close_what_it_inherited, 0)
{
    check_child_disturbs_nothing(close_first);
}

PROMISE(p12_the_end_of_a_child_releases_nothing, 0)
{
    check_child_disturbs_nothing(do_nothing);
}

PROMISE(p12_a_child_may_open_its_own_client, 0)
{
    check_child_disturbs_nothing(open_own_client);
}

struct busy_parent {
    struct name name;
    hf_client *client;
    atomic_bool over;
};

static void keep_busy(void *arg)
{
    struct busy_parent *it = arg;
    while (!atomic_load(&it->over))
        must_release(must_acquire(it->client, it->name.text, NULL));
}

static void *keep_busy_in_thread(void *arg)
{
    keep_busy(arg);
    return NULL;
}

static void close_inherited_and_open_own(void *arg)
{
    struct busy_parent *it = arg;
    struct name own = numbered_name("own", (unsigned)getpid());
    hf_close(it->client);
    hf_client *client = open_client();
    must_release(must_acquire(client, own.text, NULL));
    hf_close(client);
}

/* The fork may come while another thread is anywhere inside of the library: no mutex may stay locked in the child. */
PROMISE(p12_forks_at_any_moment_of_other_threads, CAN_FORK_BUSY)
{
    struct busy_parent it = { .name = unique_name("x"), .client = open_client() };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, keep_busy_in_thread, &it));
    for (int i = 0; i < 40; i++) {
        random_pause(500);
        helper_join(helper_start(close_inherited_and_open_own, &it));
    }
    atomic_store(&it.over, true);
    for (int i = 0; i < 2; i++)
        REQUIRE_INT(0, pthread_join(threads[i], NULL));
    hf_close(it.client);
}

struct family {
    struct name name;
    struct gate held, child_may_go;
    _Atomic pid_t child;
};

static void hold_and_fork(void *arg)
{
    struct family *family = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms_of_the_doomed();
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, family->name.text, &options);
    /* By plain fork(): this child is to outlive its parent. */
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        gate_await(&family->child_may_go, 1);
        _exit(0);
    }
    atomic_store(&family->child, child);
    gate_pass(&family->held);
    gate_await(&family->child_may_go, 1);
    must_release(lock);
}

PROMISE(p12_the_death_of_the_parent_frees_the_lock_though_a_child_lives, HF_CAP_PROCESSES)
{
    struct family *family = shared_new(sizeof *family);
    int status = 1;
    family->name = unique_name("x");
    /* Orphans become children of this process, which can then wait for their end. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    hf_client *client = open_client();
    pid_t parent = helper_start(hold_and_fork, family);
    gate_await(&family->held, 1);
    check_busy(client, family->name.text);
    helper_kill(parent);
    check_becomes_free(client, family->name.text);
    CHECK_INT(0, kill(atomic_load(&family->child), 0));
    gate_pass(&family->child_may_go);
    CHECK_INT(atomic_load(&family->child), waitpid(atomic_load(&family->child), &status, 0));
    CHECK_INT(0, status);
    hf_close(client);
}

/* A command that is started while a lock is held gets nothing of it and keeps nothing alive. */
static void hold_and_exec(void *arg)
{
    struct family *family = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms_of_the_doomed();
    hf_client *client = open_client();
    must_acquire(client, family->name.text, &options);
    gate_pass(&family->held);
    execl("/bin/sleep", "sleep", "1000", (char *)NULL);
    REQUIRE(false);
}

PROMISE(p12_exec_frees_the_lock, HF_CAP_PROCESSES)
{
    struct family *family = shared_new(sizeof *family);
    family->name = unique_name("x");
    hf_client *client = open_client();
    pid_t pid = helper_start(hold_and_exec, family);
    gate_await(&family->held, 1);
    check_becomes_free(client, family->name.text);
    helper_kill(pid);
    hf_close(client);
}
