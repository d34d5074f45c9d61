/* SPDX-License-Identifier: MIT
 *
 * test_loop.c: what is to be sent on a connection that somebody reads, and that has no room, goes as soon as there is
 * some: also if whoever said it has left, and the reader hears nothing.
 */
#include "loop/await.h"
#include "loop/loop.h"
#include "shared.h"
#include "test.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MUCH = 4 << 20 };

static struct hfi_loop loop;
static struct hfi_source source;
static struct hfi_op question;

static void take(struct hfi_source *from, const void *buffer, ssize_t got)
{
    (void)from;
    (void)buffer;
    if (CHECK(got > 0))
        hfi_op_wake(&question, HF_OK);
}

static void gone(struct hfi_source *one)
{
    close(one->fd);
}

static hf_status withdraw(struct hfi_op *op)
{
    (void)op;
    return HF_UNKNOWN;
}

static bool start_waiting(struct hfi_op *op)
{
    hfi_op_park(op, &source, withdraw);
    return true;
}

static int wait_for_answer(struct hfi_op *op)
{
    BEGIN(op->line);
    AWAIT(start_waiting(op));
    END;
    return (int)op->woken;
}

static void *ask(void *none)
{
    question = (struct hfi_op){ .run = wait_for_answer, .deadline_ns = HFI_NEVER };
    CHECK_INT(HF_OK, hfi_loop_run(&loop, &question));
    return none;
}

static void *attend(void *none)
{
    hfi_loop_attend(&loop);
    return none;
}

/* One thread reads, the other sleeps and has nothing to do. */
static bool are_there(void)
{
    hfi_loop_enter(&loop);
    const bool there = source.read && loop.driver && loop.driver == loop.attendant;
    hfi_loop_leave(&loop);
    return there;
}

static void say_much(void)
{
    hfi_loop_enter(&loop);
    REQUIRE(hfi_bytes_reserve(&source.out, MUCH));
    memset(source.out.data, 'x', MUCH);
    source.out.used = MUCH;
    hfi_source_say(&loop, &source);
    hfi_loop_leave(&loop); /* it does not wait for room */
}

static void hear_much(int fd)
{
    static char buffer[65536];
    for (size_t heard = 0; heard < MUCH;) {
        const ssize_t got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        heard += got > 0 ? (size_t)got : 0;
        if (got <= 0)
            await_a_moment();
    }
}

TEST(what_there_was_no_room_for_goes_when_there_is_some)
{
    pthread_t reader, attendant;
    int fds[2];
    REQUIRE(hfi_loop_open(&loop) && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    source = (struct hfi_source){ .fd = fds[0], .events = EPOLLIN, .connected = true, .take = take, .gone = gone };
    hfi_loop_enter(&loop);
    hfi_source_add(&loop, &source);
    hfi_loop_leave(&loop);
    REQUIRE(pthread_create(&attendant, NULL, attend, NULL) == 0 && pthread_create(&reader, NULL, ask, NULL) == 0);
    while (!are_there())
        await_a_moment();
    for (int i = 0; i < 3; i++) {
        say_much();
        hear_much(fds[1]);
    }
    REQUIRE(send(fds[1], "y", 1, MSG_NOSIGNAL) == 1);
    pthread_join(reader, NULL);
    hfi_loop_dismiss(&loop);
    pthread_join(attendant, NULL);
    hfi_loop_enter(&loop);
    hfi_source_remove(&loop, &source);
    hfi_loop_leave(&loop);
    hfi_loop_close(&loop);
    close(fds[1]);
}
