/* SPDX-License-Identifier: MIT
 *
 * nested.c: `holdfast run NAME` inside of `holdfast run NAME`.
 *
 * HOLDFAST_HELD lists what the outer runs hold, as entries of the form token:number:url:name, percent-encoded and
 * separated by blanks. The variable alone proves nothing, because it is also inherited by what outlives the outer run,
 * and can be carried anywhere. So the outer run is asked: it listens on an abstract socket that is named after the
 * number, which is random and never used again, and the kernel says which process that is. If it is an ancestor of this
 * one, it waits for us and ends us if the lock is lost. It answers whether it still holds the lock and, if so, with a
 * descriptor that ends with its hold.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define VARIABLE "HOLDFAST_HELD"

#define NUMBER_LENGTH 32 /* hexadecimal digits */
enum { SAYS_HELD = 'H', SAYS_LOST = 'L' };

/* Writes `text` so that it contains neither blank nor colon; returns what follows it. Three bytes for each may be
 * needed. */
static char *encode(char *out, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";

    for (; *text != '\0'; text++) {
        if (strchr(plain, *text) != NULL) {
            *out++ = *text;
        } else {
            *out++ = '%';
            *out++ = digits[(unsigned char)*text >> 4];
            *out++ = digits[(unsigned char)*text & 15];
        }
    }
    *out = '\0';
    return out;
}

/* ":url:name", how the entry for this lock ends. NULL if there is no memory. An empty url: ":name". */
static char *entry_end(const char *url, const char *name)
{
    char *end = malloc(3 * (strlen(url) + strlen(name)) + 3);

    if (end != NULL) {
        char *at = end;

        if (*url != '\0') {
            *at++ = ':';
            at = encode(at, url);
        }
        *at++ = ':';
        encode(at, name);
    }
    return end;
}

/* Finds the last entry with that end. */
static const char *find_entry(const char *end)
{
    const char *found = NULL;
    const char *at = getenv(VARIABLE);

    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, " ");

        if (length > strlen(end) && memcmp(at + length - strlen(end), end, strlen(end)) == 0)
            found = at;
        at += length + (at[length] == ' ');
    }
    return found;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    long parent = 0;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    /* The name of the program, in parentheses, may itself contain anything. */
    const char *after = strrchr(text, ')');
    return after != NULL && sscanf(after, ") %*c %ld", &parent) == 1 ? (pid_t)parent : 0;
}

static bool is_ancestor(pid_t ancestor)
{
    pid_t pid = getppid();

    for (int level = 0; level < 10000 && pid > 0; level++) {
        if (pid == ancestor)
            return true;
        pid = parent_of(pid);
    }
    return false;
}

bool hfc_nested_maybe(const char *name)
{
    char *end = getenv(VARIABLE) != NULL ? entry_end("", name) : NULL;
    bool found = end != NULL && find_entry(end) != NULL;

    free(end);
    return found;
}

/* --- the outer run's side --- */

static socklen_t address_of(struct sockaddr_un *address, const char number[NUMBER_LENGTH + 1])
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    /* The first byte stays 0: a name that is no file, and gone with the process. */
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "holdfast-run-%s", number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void stop_listening(struct hfc_witness *witness)
{
    if (witness->listener >= 0)
        close(witness->listener);
    witness->listener = -1;
}

static bool listen_at(struct hfc_witness *witness, char number[NUMBER_LENGTH + 1])
{
    unsigned char bytes[NUMBER_LENGTH / 2];
    struct sockaddr_un address;

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(number + 2 * i, 3, "%02x", bytes[i]);
    socklen_t length = address_of(&address, number);
    if (pipe2(witness->hold, O_CLOEXEC) < 0)
        return false;
    witness->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (witness->listener >= 0 && bind(witness->listener, (const struct sockaddr *)&address, length) == 0 &&
        listen(witness->listener, SOMAXCONN) == 0)
        return true;
    stop_listening(witness);
    return false;
}

void hfc_witness_end(struct hfc_witness *witness)
{
    if (witness->hold[1] >= 0)
        close(witness->hold[1]);
    witness->hold[1] = -1;
}

void hfc_witness_answer(struct hfc_witness *witness)
{
    char word = witness->hold[1] >= 0 ? SAYS_HELD : SAYS_LOST;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = { .room = { 0 } };
    struct iovec text = { .iov_base = &word, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1 };

    if (word == SAYS_HELD) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &witness->hold[0], sizeof(int));
    }
    int peer = accept4(witness->listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        stop_listening(witness); /* who asks in vain takes the lock like anybody else */
    if (peer < 0)
        return;
    /* One that does not wait for the answer does not get it. */
    if (sendmsg(peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EPIPE)
        hfc_say("cannot answer a nested run: %s", strerror(errno));
    close(peer);
}

/* --- the inner run's side --- */

/* Connects to whoever listens under that number; -1 unless it is an ancestor of ours. */
static int connect_to_outer(const char number[NUMBER_LENGTH + 1])
{
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t length = address_of(&address, number), size = sizeof peer;

    int outer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (outer >= 0 && connect(outer, (const struct sockaddr *)&address, length) == 0 &&
        getsockopt(outer, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && is_ancestor(peer.pid))
        return outer;
    if (outer >= 0)
        close(outer);
    return -1;
}

/* Reads the answer. *hold_fd is -1 unless one came with it. */
static enum hfc_nested read_answer(int outer, int *hold_fd)
{
    char word = 0;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec text = { .iov_base = &word, .iov_len = 1 };
    struct msghdr message = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };

    /* Nothing: it has just ended. */
    if (recvmsg(outer, &message, MSG_CMSG_CLOEXEC) != 1)
        return HFC_NESTED_NOT;
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (word != SAYS_HELD || rights == NULL || rights->cmsg_type != SCM_RIGHTS)
        return HFC_NESTED_LOST;
    memcpy(hold_fd, CMSG_DATA(rights), sizeof(int));
    return HFC_NESTED_HELD;
}

enum hfc_nested hfc_nested_find(const char *url, const char *name, const struct hfc_signals *signals, uint64_t *token,
                                int *hold_fd)
{
    char *end = entry_end(url, name);
    const char *entry = end != NULL ? find_entry(end) : NULL;
    char number[NUMBER_LENGTH + 1];
    unsigned long long value;

    free(end);
    if (entry == NULL || sscanf(entry, "%llu:%32[0-9a-f]:", &value, number) != 2 || strlen(number) != NUMBER_LENGTH)
        return HFC_NESTED_NOT;
    int outer = connect_to_outer(number);
    if (outer < 0)
        return HFC_NESTED_NOT;
    /* As a rule it answers at once; one that is stopped does when it goes on. Each turn consumes a signal. */
    struct pollfd fds[] = { { .fd = outer, .events = POLLIN }, { .fd = signals->fd, .events = POLLIN } };
    while (poll(fds, 2, -1) < 0 || fds[0].revents == 0) {
        int deadly = hfc_signals_next_deadly(signals);
        if (deadly != 0)
            hfc_signals_die(deadly);
    }
    enum hfc_nested answer = read_answer(outer, hold_fd);
    close(outer);
    *token = value;
    return answer;
}

/* --- the environment --- */

static bool append_held(const char *url, const char *name, const char *token, const char *number)
{
    const char *before = getenv(VARIABLE);
    char *end = entry_end(url, name);
    char *all = NULL;
    bool done = end != NULL && asprintf(&all, "%s%s%s:%s%s", before != NULL ? before : "",
                                        before != NULL && *before != '\0' ? " " : "", token, number, end) >= 0;

    done = done && setenv(VARIABLE, all, 1) == 0;
    free(all);
    free(end);
    return done;
}

bool hfc_nested_export(const char *url, const char *name, uint64_t token, struct hfc_witness *witness)
{
    char text[24], number[NUMBER_LENGTH + 1];

    snprintf(text, sizeof text, "%llu", (unsigned long long)token);
    /* Without a socket nested runs do not recognise this one, and wait for the lock like anybody else. */
    const bool offered = witness != NULL && listen_at(witness, number);
    if (setenv("HOLDFAST_NAME", name, 1) != 0 || setenv("HOLDFAST_TOKEN", text, 1) != 0 ||
        setenv("HOLDFAST_URL", url, 1) != 0 || !hfc_export_password_file() ||
        (offered && !append_held(url, name, text, number))) {
        hfc_say("no memory for the environment");
        return false;
    }
    return true;
}
