/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_names.c: the number at the end of a node's name, whoever wrote it; who comes before whom, also when
 * the numbers go round; names of locks as directories that ZooKeeper takes; marks, whoever wrote them.
 */
#include "engines/zookeeper/zookeeper.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static void check_number(const char *node, int64_t expected)
{
    int32_t number = 0;
    if (!CHECK(hfi_zookeeper_sequence(node, &number)) || !CHECK_INT(expected, number))
        test_note("for %s", node);
}

static void check_nobody(const char *node)
{
    int32_t number;
    if (!CHECK(!hfi_zookeeper_sequence(node, &number)))
        test_note("for %s", node);
}

TEST(every_known_style_has_its_number)
{
    check_number("_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-lock-0000000007", 7);
    check_number("_c_6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b-lock-0000000008", 8);
    check_number("_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-__WRIT__0000000009", 9);
    check_number("6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b__lock__0000000010", 10);
    check_number("6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b__rlock__0000000011", 11);
    check_number("x-72057594037927936-0000000012", 12);
    check_number("x-0100000000000000-2147483647", INT32_MAX);
    check_number("0000000013", 13);
}

TEST(numbers_below_zero)
{
    check_number("_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-lock--2147483648", INT32_MIN);
    check_number("_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-lock--1999999999", -1999999999);
    check_number("6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b__lock__-2147483648", INT32_MIN);
    check_number("x-0100000000000000--2147483647", -INT32_MAX);
    /* The server pads to ten characters, the sign included. */
    check_number("_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-lock--000000001", -1);
    check_number("6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b__lock__-999999999", -999999999);
    /* No other sign fits. */
    check_number("lock-2147483648", INT32_MIN);
}

TEST(who_is_nobody)
{
    check_nobody("");
    check_nobody("lease");
    check_nobody("config");
    check_nobody("lock-123");
    check_nobody("lock-000000001x");
    check_nobody("job-123456789");
    check_nobody("x--9999999999");
    check_nobody("锁");
}

TEST(numbers_go_round)
{
    CHECK(hfi_zookeeper_is_before(1, 2));
    CHECK(!hfi_zookeeper_is_before(2, 1));
    CHECK(!hfi_zookeeper_is_before(2, 2));
    CHECK(hfi_zookeeper_is_before(INT32_MAX, INT32_MIN));
    CHECK(!hfi_zookeeper_is_before(INT32_MIN, INT32_MAX));
    CHECK(hfi_zookeeper_is_before(INT32_MIN, INT32_MIN + 1));
    CHECK(hfi_zookeeper_is_before(-1, 0));
}

TEST(a_line_across_the_turn_is_in_order)
{
    char a[] = "_c_1-lock--2147483648", b[] = "2__lock__2147483646", c[] = "x-3-2147483647", d[] = "not-one",
         e[] = "4__lock__-2147483647";
    char *names[] = { a, b, d, c, e };
    struct zookeeper_children line = { 5, names };
    hfi_zookeeper_line_up(&line);
    REQUIRE_INT(4, line.count);
    CHECK_STR(b, line.names[0]);
    CHECK_STR(c, line.names[1]);
    CHECK_STR(a, line.names[2]);
    CHECK_STR(e, line.names[3]);
}

TEST(our_nodes_are_called_as_others_call_theirs)
{
    struct zookeeper_config config = { .kazoo = false };
    const struct hfi_owner owner = { 0x0123456789abcdefu, 0x11 };
    char node[HFI_ZOOKEEPER_NODE_MAX];
    hfi_zookeeper_node_prefix(node, &config, owner, 2);
    CHECK_STR("_c_01234567-89ab-cdef-0000-000000110002-lock-", node);
    config.kazoo = true;
    hfi_zookeeper_node_prefix(node, &config, owner, 2);
    CHECK_STR("0123456789abcdef0000000000110002__lock__", node);
}

static void check_name(const char *name, const char *expected)
{
    char encoded[HFI_NAME_ENCODED_MAX], decoded[HFI_NAME_MAX + 1];
    hfi_zookeeper_name_encode(encoded, name);
    CHECK_STR(expected, encoded);
    CHECK(hfi_zookeeper_component_check(encoded, strlen(encoded)));
    CHECK(hfi_zookeeper_name_decode(decoded, encoded));
    CHECK_STR(name, decoded);
}

TEST(names_become_what_zookeeper_takes)
{
    char decoded[HFI_NAME_MAX + 1];
    check_name("nightly-report", "nightly-report");
    check_name("a/b", "a%2Fb");
    check_name("a%2Fb", "a%252Fb");
    check_name(".", "%2E");
    check_name("..", "%2E.");
    check_name("锁", "锁");
    check_name("\xf0\x9f\x94\x92", "%F0%9F%94%92");      /* beyond U+FFFF: two halves, which are refused */
    check_name("\xee\x80\x80", "%EE%80%80");             /* U+E000, for private use */
    check_name("\xef\xbf\xbd", "%EF%BF%BD");             /* U+FFFD */
    check_name("\xef\xbb\xbf", "\xef\xbb\xbf");          /* U+FEFF is fine */
    CHECK(!hfi_zookeeper_name_decode(decoded, "a%2fb")); /* not as we write it: another client's directory */
    CHECK(!hfi_zookeeper_name_decode(decoded, "a%41"));
    CHECK(!hfi_zookeeper_name_decode(decoded, "%0"));
    CHECK(!hfi_zookeeper_component_check(".", 1));
    CHECK(!hfi_zookeeper_component_check("..", 2));
    CHECK(!hfi_zookeeper_component_check("", 0));
    CHECK(!hfi_zookeeper_component_check("a\x01", 2));
}

static void check_mark(const char *data, int64_t mtime, int64_t now_ms, bool counts)
{
    char text[100];
    struct zookeeper_mark mark;
    const struct Stat stat = { .mtime = mtime };
    snprintf(text, sizeof text, "%s", data);
    CHECK_INT(counts, hfi_zookeeper_mark_read(&mark, text, &stat, now_ms));
    CHECK_INT(counts, mark.left_ms > 0);
    CHECK(mark.ago_ms >= 0 && mark.who >= text && mark.who <= text + strlen(data));
}

TEST(marks_are_read_as_they_were_written)
{
    struct zookeeper_config config = { .prefix = "/a/b" };
    char path[HFI_ZOOKEEPER_PATH_MAX], data[HFI_ZOOKEEPER_MARK_MAX], decoded[HFI_NAME_MAX + 1];
    struct zookeeper_mark mark;
    const struct Stat stat = { .mtime = 1000000 };
    hfi_zookeeper_mark_path(path, &config, "x/.y");
    CHECK_STR("/a/b/.done/x%2F.y", path);
    CHECK(!hfi_zookeeper_name_decode(decoded, ".done")); /* which is no lock */
    hfi_zookeeper_mark_write(data, 5000, UINT64_MAX, "host 12 a note");
    CHECK(hfi_zookeeper_mark_read(&mark, data, &stat, 1000400));
    CHECK_INT(UINT64_MAX, mark.token);
    CHECK_INT(400, mark.ago_ms);
    CHECK_INT(4600, mark.left_ms);
    CHECK_STR("host 12 a note", mark.who);
    check_mark("5000 1 host 1", 1000000, 1004999, true);
    check_mark("5000 1 host 1", 1000000, 1005000, false);
    check_mark("5000 1 host 1", 1000000, 1, true); /* the clock was set back */
    check_mark("5000", 1000000, 1000000, true);
    check_mark("", 1000000, 1000000, false);
    check_mark("-9223372036854775808 x", 1000000, 2000000, false);
    check_mark("a word", 1000000, 1000000, false);
}

TEST(who_broke_a_lock_is_said_of_one_node)
{
    char data[HFI_ZOOKEEPER_DATA_MAX];
    hfi_zookeeper_breaker_write(data, "a-lock-0000000007", "joe@host:4711");
    CHECK_STR("joe@host:4711", hfi_zookeeper_breaker_read(data, "a-lock-0000000007"));
    CHECK(!hfi_zookeeper_breaker_read(data, "a-lock-0000000008"));
    CHECK(!hfi_zookeeper_breaker_read(data, "a-lock-000000000"));
    CHECK(!hfi_zookeeper_breaker_read(data, ""));
    CHECK(!hfi_zookeeper_breaker_read("", "a-lock-0000000007"));
    CHECK(!hfi_zookeeper_breaker_read("a-lock-0000000007", "a-lock-0000000007"));
    CHECK(!hfi_zookeeper_breaker_read("a-lock-0000000007 ", "a-lock-0000000007"));
    CHECK(hfi_zookeeper_is_breaker(data));
    CHECK(!hfi_zookeeper_is_breaker("a-lock-0000000007"));
    CHECK(!hfi_zookeeper_is_breaker("192.0.2.1"));
    CHECK(!hfi_zookeeper_is_breaker("ours since 2019"));
}
