/* SPDX-License-Identifier: MIT
 *
 * talk.c: see talk.h.
 */
#include "talk.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define SILENCE_MOST_MS 10000
/* More than that were needed by a crowd that has gone: servers allow a thousand or so in all. */
#define IDLE_MOST 64

/* --- the URL --- */

static hf_status read_host(struct hfi_talks *talks, const char *text, const char *usual_port, hf_error *err)
{
    const bool bracket = *text == '[';
    const char *host = text + bracket, *end = bracket ? strchr(host, ']') : strchr(host, ':');
    char decoded[HFI_URL_TEXT_MAX];
    long port;
    if (strpbrk(text, "@/?,") || (bracket && (!end || (end[1] && end[1] != ':'))))
        return hfi_fail(err, HF_INVALID, 0, "a URL of this engine is SCHEME://HOST:PORT and nothing more");
    const char *colon = end && bracket ? (end[1] ? end + 1 : NULL) : end;
    hf_status status = hfi_url_decode(decoded, host, end ? (size_t)(end - host) : strlen(host), err);
    if (status == HF_OK)
        status = hfi_url_read_number(&port, colon ? colon + 1 : usual_port, 1, 65535, "the port", err);
    if (status == HF_OK && (strlen(decoded) >= sizeof talks->host || strpbrk(decoded, " \r\n")))
        return hfi_fail(err, HF_INVALID, 0, "the host in the URL is too long, or none");
    if (status == HF_OK) {
        snprintf(talks->host, sizeof talks->host, "%.255s", *decoded ? decoded : "127.0.0.1");
        snprintf(talks->port, sizeof talks->port, "%ld", port);
    }
    return status;
}

hf_status hfi_talks_open(struct hfi_talks *talks, const struct hfi_url *url, const char *usual_port, hf_error *err)
{
    const char *kind = strchr(url->scheme, '+');
    char path[HFI_URL_TEXT_MAX];
    pthread_mutex_init(&talks->mutex, NULL);
    if (*url->rest && strncmp(url->rest, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "a URL of this engine is SCHEME://HOST:PORT");
    const char *rest = url->rest + (*url->rest ? 2 : 0);
    if (!kind)
        return read_host(talks, rest, usual_port, err);
    const hf_status status = hfi_url_decode(path, rest, strlen(rest), err);
    if (status == HF_OK && (*path != '/' || strlen(path) >= sizeof talks->host || strchr(rest, '?')))
        return hfi_fail(err, HF_INVALID, 0, "a Unix socket's URL is SCHEME+unix:///PATH and nothing more");
    if (status == HF_OK)
        snprintf(talks->host, sizeof talks->host, "%.255s", path);
    return status;
}

/* --- connections --- */

static hf_status disconnect(struct hfi_talk *talk, hf_status status)
{
    if (talk->is_broken)
        hfi_dial_reset(talk->fd);
    hfi_dial_end(&talk->dial);
    hfi_fd_close(talk->fd);
    hfi_free(talk);
    return status;
}

void hfi_talks_close(struct hfi_talks *talks)
{
    for (struct hfi_talk *talk = talks->idle, *next; talk; talk = next) {
        next = talk->next;
        disconnect(talk, HF_OK);
    }
    pthread_mutex_destroy(&talks->mutex);
}

static bool is_ready(const struct hfi_talk *talk, short events)
{
    struct pollfd one = { .fd = talk->fd, .events = events };
    for (hfi_time left; (left = talk->deadline_ns - talk->of->env->now_ns()) > 0;) {
        const int ready = poll(&one, 1, left < HFI_SECOND ? (int)(left / HFI_MS) + 1 : 1000);
        if (ready > 0 || (ready < 0 && errno != EINTR))
            return ready > 0;
    }
    return false;
}

static hf_status connect_by(struct hfi_talk *talk)
{
    const char *host = talk->of->host, *port = talk->of->port;
    talk->dial.silence_ms = SILENCE_MOST_MS;
    talk->dial.alone = true;
    hf_status status = hfi_dial_begin(&talk->dial, &talk->fd, host, port, talk->err);
    if (status == HF_OK)
        status = HF_TIMEOUT;
    while (status == HF_TIMEOUT && is_ready(talk, POLLIN | POLLOUT))
        status = hfi_dial_step(&talk->dial, &talk->fd, host, port, talk->err);
    return status == HF_TIMEOUT ? hfi_dial_late(&talk->dial, host, port, talk->err) : status;
}

/* The last that was given back, but none on which something has come meanwhile, its end say; NULL: there is none. */
static struct hfi_talk *take_idle(struct hfi_talks *talks)
{
    for (;;) {
        pthread_mutex_lock(&talks->mutex);
        struct hfi_talk *talk = talks->idle;
        talks->idle = talk ? talk->next : NULL;
        talks->idle_count -= talk ? 1 : 0;
        pthread_mutex_unlock(&talks->mutex);
        if (!talk || poll(&(struct pollfd){ .fd = talk->fd, .events = POLLIN }, 1, 0) == 0)
            return talk;
        disconnect(talk, HF_OK);
    }
}

hf_status hfi_talk_begin(struct hfi_talk **out, struct hfi_talks *talks, hfi_time deadline_ns, hf_error *err)
{
    struct hfi_talk *talk = take_idle(talks);
    const bool is_new = !talk;
    if (is_new && !(talk = hfi_alloc(talks->size)))
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    *out = talk;
    talk->of = talks;
    talk->deadline_ns = deadline_ns;
    talk->err = err;
    talk->silence = HF_UNKNOWN;
    talk->out_used = 0;
    talk->is_new = is_new;
    if (!is_new)
        return HF_OK;
    talk->fd = -1;
    const hf_status status = connect_by(talk);
    return status == HF_OK ? HF_OK : disconnect(talk, status);
}

hf_status hfi_talk_end(struct hfi_talk *talk, hf_status status)
{
    struct hfi_talks *talks = talk->of;
    if (talk->is_broken)
        return disconnect(talk, status);
    talk->err = NULL;
    pthread_mutex_lock(&talks->mutex);
    const bool stays = talks->idle_count < IDLE_MOST;
    if (stays) {
        talk->next = talks->idle;
        talks->idle = talk;
        talks->idle_count++;
    }
    pthread_mutex_unlock(&talks->mutex);
    return stays ? status : disconnect(talk, status);
}

/* --- one exchange --- */

void hfi_talk_add(struct hfi_talk *talk, const char *format, ...)
{
    va_list words;
    va_start(words, format);
    const size_t room = sizeof talk->out - talk->out_used;
    const int length = vsnprintf(talk->out + talk->out_used, room, format, words);
    talk->out_used += length > 0 && (size_t)length < room ? (size_t)length : 0;
    va_end(words);
}

/* Both at once: a server whose answers nobody reads may stop reading, too. */
static bool send_and_receive(struct hfi_talk *talk, size_t *sent)
{
    const size_t left = talk->out_used - *sent, room = sizeof talk->in - 1 - talk->in_used;
    const ssize_t gone = left ? send(talk->fd, talk->out + *sent, left, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    if (gone < 0 && errno != EAGAIN && errno != EINTR)
        return false;
    *sent += gone > 0 ? (size_t)gone : 0;
    const ssize_t got = recv(talk->fd, talk->in + talk->in_used, room, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        return false;
    talk->in_used += got > 0 ? (size_t)got : 0;
    talk->in[talk->in_used] = 0;
    return true;
}

hf_status hfi_talk_ask(struct hfi_talk *talk, size_t answers)
{
    const char *end = talk->in, *next;
    size_t sent = 0;
    talk->in_used = 0;
    talk->is_broken = true; /* until all is there */
    while (answers || sent < talk->out_used) {
        if (!is_ready(talk, sent < talk->out_used ? POLLIN | POLLOUT : POLLIN))
            return hfi_fail(talk->err, sent ? talk->silence : HF_UNAVAILABLE, 0, "%.120s did not answer in time",
                            talk->of->host);
        if (!send_and_receive(talk, &sent))
            return hfi_fail(talk->err, sent ? talk->silence : HF_UNAVAILABLE, 0, "the connection to %.120s broke",
                            talk->of->host);
        for (; answers && (next = talk->of->end_of(end, talk->in + talk->in_used)) != NULL; answers--)
            end = next;
    }
    talk->out_used = 0;
    talk->is_broken = end != talk->in + talk->in_used; /* it says what it was not asked for */
    return talk->is_broken ? hfi_fail(talk->err, HF_INTERNAL, 0, "%.120s says more than it was asked", talk->of->host)
                           : HF_OK;
}
