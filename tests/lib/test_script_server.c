/* SPDX-License-Identifier: MIT
 *
 * test_script_server.c: every step of the scripted server, tried with a plain socket.
 */
#include "script_parse.h"
#include "script_server.h"
#include "shared.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int try_connect(int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int connect_to(struct script_server *server)
{
    int fd = try_connect(script_port(server));
    REQUIRE(fd >= 0);
    return fd;
}

static void say(int fd, const char *text)
{
    REQUIRE_INT(strlen(text), send(fd, text, strlen(text), MSG_NOSIGNAL));
}

/* Reads as many bytes as `text` has. */
static void hear(int fd, const char *text)
{
    char buffer[1000] = "";
    REQUIRE_INT(strlen(text), recv(fd, buffer, strlen(text), MSG_WAITALL));
    CHECK_STR(text, buffer);
}

static void hear_end(int fd)
{
    char byte;
    CHECK_INT(0, recv(fd, &byte, 1, 0));
}

static bool has_something(int fd, int ms)
{
    struct pollfd one = { .fd = fd, .events = POLLIN };
    return poll(&one, 1, ms) > 0;
}

static void expect_mismatch(struct script_server *server, const char *words)
{
    char why[1000];
    CHECK(!script_finish(server, why, sizeof why));
    if (!CHECK(strstr(why, words) != NULL))
        test_note("it says: %s", why);
}

TEST(a_conversation)
{
    struct script_server *server = script_start("# as a Redis client would begin\n"
                                                "accept\n"
                                                "expect PING\\r\\n\n"
                                                "send +PONG\\r\\n\n"
                                                "\n"
                                                "  expect* \\r\\n\n"
                                                "send \\x00\\xff\\\\\n"
                                                "skip 3\n"
                                                "dribble slowly\n"
                                                "expect id=\\?\\?;\n"
                                                "cut\n");
    int fd = connect_to(server);
    say(fd, "PING\r\n");
    hear(fd, "+PONG\r\n");
    say(fd, "anything at all\r\n");
    char raw[3];
    REQUIRE_INT(3, recv(fd, raw, 3, MSG_WAITALL));
    CHECK(memcmp(raw, "\x00\xff\\", 3) == 0);
    /* What comes too early waits for its step. */
    say(fd, "abcid=42;");
    hear(fd, "slowly");
    hear_end(fd);
    close(fd);
    script_check(server);
}

TEST(bytes_in_pieces_are_put_together)
{
    struct script_server *server = script_start("accept\nexpect hello\nsend ok\n");
    int fd = connect_to(server);
    say(fd, "he");
    say(fd, "llo");
    hear(fd, "ok");
    close(fd);
    script_check(server);
}

TEST(half_a_reply_and_the_rest_after_a_stall)
{
    struct script_server *server = script_start("accept\nsend half\nstall\nsend rest\nstall\nsend end\n");
    int fd = connect_to(server);
    hear(fd, "half");
    script_await_stall(server, 1);
    CHECK(!has_something(fd, 50));
    script_go(server);
    hear(fd, "rest");
    script_await_stall(server, 2);
    CHECK(!has_something(fd, 50));
    script_go(server);
    hear(fd, "end");
    close(fd);
    script_check(server);
}

TEST(the_end_of_the_test_ends_a_stall)
{
    struct script_server *server = script_start("accept\nstall\ncut\n");
    int fd = connect_to(server);
    script_await_stall(server, 1);
    script_check(server);
    hear_end(fd);
    close(fd);
}

TEST(a_reset_is_seen_as_one)
{
    struct script_server *server = script_start("accept\nexpect x\nreset\n");
    int fd = connect_to(server);
    say(fd, "x");
    char byte;
    CHECK_INT(-1, recv(fd, &byte, 1, 0));
    CHECK_INT(ECONNRESET, errno);
    close(fd);
    script_check(server);
}

TEST(connections_in_sequence)
{
    struct script_server *server = script_start("accept\nexpect a\ncut\naccept\nexpect b\nsend B\n");
    int first = connect_to(server);
    say(first, "a");
    hear_end(first);
    int second = connect_to(server);
    say(second, "b");
    hear(second, "B");
    close(first);
    close(second);
    script_check(server);
}

TEST(connections_at_the_same_time)
{
    struct script_server *server = script_start("accept one\naccept two\nuse one\nexpect 1\nuse two\nexpect 2\n"
                                                "send II\nuse one\nsend I\ncut\nuse two\neof\n");
    int one = connect_to(server);
    int two = connect_to(server);
    say(two, "2");
    say(one, "1");
    hear(one, "I");
    hear(two, "II");
    hear_end(one);
    close(two);
    close(one);
    script_check(server);
}

TEST(refused_connections)
{
    struct script_server *server = script_start("accept\nrefuse\nsend closed\n");
    int fd = connect_to(server);
    hear(fd, "closed");
    CHECK_INT(-1, try_connect(script_port(server)));
    CHECK_INT(ECONNREFUSED, errno);
    close(fd);
    script_check(server);
}

TEST(a_unix_socket)
{
    char path[80], directory[] = "/tmp/script-server-XXXXXX";
    REQUIRE(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/socket", directory);
    struct script_server *server = script_start_unix(path, "accept\nexpect hi\nsend there\n");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE_INT(0, connect(fd, (struct sockaddr *)&address, sizeof address));
    CHECK_INT(0, script_port(server));
    say(fd, "hi");
    hear(fd, "there");
    close(fd);
    script_check(server);
    CHECK_INT(0, rmdir(directory));
}

TEST(whoever_speaks_first)
{
    struct script_server *server =
        script_start("accept one\naccept two\nnext\nexpect second\nsend II\nnext\nexpect first\nsend I\n");
    int one = connect_to(server);
    int two = connect_to(server);
    say(two, "second");
    hear(two, "II");
    say(one, "first");
    hear(one, "I");
    close(one);
    close(two);
    script_check(server);
}

TEST(bytes_that_come_again)
{
    struct script_server *server = script_start("accept\nexpect id=\\1\\1\\1 in \\2\\2;\nsend hello \\1\\1\\1\n"
                                                "expect \\2\\2 \\1\\1\\1;\nsend bye\n");
    int fd = connect_to(server);
    say(fd, "id=abc in DE;");
    hear(fd, "hello abc");
    say(fd, "DE abc;");
    hear(fd, "bye");
    close(fd);
    script_check(server);
}

TEST(a_client_that_gives_up_may_come_again)
{
    struct script_server *server =
        script_start("retry\naccept\nexpect hello\nsend welcome\nexpect bye\ndone\nsend end\n");
    int first = connect_to(server);
    say(first, "hel");
    close(first);
    int second = connect_to(server);
    say(second, "hello");
    hear(second, "welcome");
    close(second);
    int third = connect_to(server);
    say(third, "hellobye");
    hear(third, "welcome");
    hear(third, "end");
    close(third);
    script_check(server);
}

/* --- mismatches --- */

TEST(other_bytes_than_before_are_reported)
{
    struct script_server *server = script_start("accept\nexpect \\1\\1\nexpect \\1\\1\n");
    int fd = connect_to(server);
    say(fd, "abac");
    expect_mismatch(server, "line 3: other bytes came");
    close(fd);
    server = script_start("accept\nsend \\3\n");
    fd = connect_to(server);
    expect_mismatch(server, "line 2: a group was not met before");
    close(fd);
}

TEST(coming_again_with_other_bytes_is_reported)
{
    struct script_server *server = script_start("retry\naccept\nexpect hello\ndone\n");
    int fd = connect_to(server);
    say(fd, "help");
    hear_end(fd);
    close(fd);
    expect_mismatch(server, "line 3: other bytes came");
}

TEST(other_bytes_are_reported_at_once)
{
    struct script_server *server = script_start("accept\n\nexpect PING\\r\\n\nsend never\n");
    int fd = connect_to(server);
    say(fd, "PO\n");
    hear_end(fd);
    close(fd);
    expect_mismatch(server, "line 3: other bytes came; expected \"PING\\r\\n\", received \"PO\\n\"");
}

TEST(too_few_bytes_are_reported)
{
    struct script_server *server = script_start("accept\nexpect PING\n");
    int fd = connect_to(server);
    say(fd, "PI");
    REQUIRE_INT(0, shutdown(fd, SHUT_WR));
    expect_mismatch(server, "line 2: the client closed the connection; expected \"PING\", received \"PI\"");
    close(fd);
}

TEST(silence_is_reported)
{
    struct script_server *server = script_start("stall\naccept\nexpect* \\n\n");
    script_set_patience(server, 50);
    int fd = connect_to(server);
    script_go(server);
    say(fd, "no end");
    script_await_end(server);
    expect_mismatch(server, "line 3: not enough came in time; expected \"\\n\", received \"no end\"");
    close(fd);
}

TEST(nobody_is_reported)
{
    struct script_server *server = script_start("stall\naccept\n");
    script_set_patience(server, 50);
    script_go(server);
    expect_mismatch(server, "line 2: nobody connected in time");
    server = script_start("stall\nnext\n");
    script_set_patience(server, 50);
    script_go(server);
    expect_mismatch(server, "line 2: nothing came in time");
}

TEST(bytes_after_the_end_are_reported)
{
    struct script_server *server = script_start("accept\nexpect a\neof\n");
    int fd = connect_to(server);
    say(fd, "ab");
    expect_mismatch(server, "line 3: bytes came where an end was expected; expected \"\", received \"b\"");
    close(fd);
}

TEST(steps_without_a_connection_are_reported)
{
    expect_mismatch(script_start("send x\n"), "line 1: there is no connection");
    expect_mismatch(script_start("use nobody\n"), "line 1: there is no connection of that name");
}

TEST(scripts_that_make_no_sense)
{
    static const char *const bad[] = { "dance\n",    "send\n", "expect\n",    "send \\q\n",  "send \\x4\n",
                                       "send \\?\n", "skip\n", "skip many\n", "stall now\n", "send \\" };
    struct script script;
    char why[300];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!CHECK(!script_parse(&script, bad[i], why, sizeof why)))
            test_note("for %s", bad[i]);
        else
            CHECK(strstr(why, "line 1 makes no sense") != NULL);
        script_free(&script);
    }
    CHECK(script_parse(&script, "", why, sizeof why));
    CHECK_INT(0, script.count);
    static const char *const unbalanced[] = { "retry\n", "done\n", "retry\nretry\ndone\n" };
    for (size_t i = 0; i < sizeof unbalanced / sizeof *unbalanced; i++) {
        if (!CHECK(!script_parse(&script, unbalanced[i], why, sizeof why)))
            test_note("for %s", unbalanced[i]);
        script_free(&script);
    }
}
