/* SPDX-License-Identifier: MIT
 *
 * sql_common.c: see sql_common.h.
 */
#include "sql_common.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define IDENTIFIER_MAX 50
/* What a library may open beside its socket: password, service or option files, certificates. */
#define SPARE_DESCRIPTORS 4

bool hfi_sql_is_identifier(const char *text, size_t length)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return length > 0 && length <= IDENTIFIER_MAX && strspn(text, letters) >= length &&
           !(text[0] >= '0' && text[0] <= '9');
}

hf_status hfi_sql_check_descriptors(hf_error *err)
{
    int spare[SPARE_DESCRIPTORS];
    int failure = 0;
    hfi_fd_begin();
    for (size_t i = 0; i < SPARE_DESCRIPTORS; i++) {
        spare[i] = failure ? -1 : eventfd(0, EFD_CLOEXEC);
        if (spare[i] < 0 && !failure)
            failure = errno;
    }
    for (size_t i = 0; i < SPARE_DESCRIPTORS; i++) {
        if (spare[i] >= 0)
            close(spare[i]);
    }
    hfi_fd_end(-1);
    return failure ? hfi_fail_errno(err, failure, "open", "a connection") : HF_OK;
}

hf_status hfi_sql_watch_open(int *watch, int *heart, int seconds, hf_error *err)
{
    const struct itimerspec pulse = { .it_value = { .tv_sec = seconds }, .it_interval = { .tv_sec = seconds } };
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = HFI_SQL_HEART };
    *watch = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    if (*watch >= 0)
        *heart = HFI_FD(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
    if (*watch < 0 || *heart < 0 || timerfd_settime(*heart, 0, &pulse, NULL) != 0 ||
        epoll_ctl(*watch, EPOLL_CTL_ADD, *heart, &event) != 0)
        return hfi_fail_errno(err, errno, "make", "a client");
    return HF_OK;
}

#define BROKEN "token %" PRIu64 " broken by "

void hfi_sql_write_broken(char out[HFI_SQL_BROKEN_MAX], uint64_t token, const char *by)
{
    snprintf(out, HFI_SQL_BROKEN_MAX, BROKEN "%s", token, by);
    for (char *c = out; *c; c++) /* what is cut off in the column must not be half a character */
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
}

void hfi_sql_read_broken(char why[HFI_WHY_MAX], const char *note, uint64_t token)
{
    char beginning[HFI_SQL_BROKEN_MAX];
    const int length = snprintf(beginning, sizeof beginning, BROKEN, token);
    if (strncmp(note, beginning, (size_t)length) != 0)
        return;
    hfi_say_broken(why, note + length);
}

hfi_time hfi_sql_patience(hfi_time now_ns, hfi_time deadline_ns)
{
    const hfi_time half = (deadline_ns - now_ns) / 2;
    return now_ns + (half < HFI_SECOND ? half : HFI_SECOND);
}

void *hfi_sql_pool_take(struct hfi_sql_pool *pool)
{
    pthread_mutex_lock(pool->mutex);
    void *connection = pool->count > 0 ? pool->idle[--pool->count] : NULL;
    pthread_mutex_unlock(pool->mutex);
    return connection;
}

bool hfi_sql_pool_put(struct hfi_sql_pool *pool, void *connection)
{
    pthread_mutex_lock(pool->mutex);
    const bool room = pool->count < HFI_SQL_IDLE_MOST;
    if (room)
        pool->idle[pool->count++] = connection;
    pthread_mutex_unlock(pool->mutex);
    return room;
}
