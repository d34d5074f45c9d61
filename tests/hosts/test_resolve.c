/* SPDX-License-Identifier: MIT
 *
 * test_resolve.c: how the core looks up hosts.
 */
#include "hosts.h"
#include "resolve.h"
#include "shared.h"
#include "test.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MS 1000000LL
/* As many as can be known at once. */
#define MANY 64

static hf_status look_up(struct hfi_addresses *found, const char *host, uint32_t ms, hf_error *err)
{
    const char *const hosts[] = { host };
    return hfi_resolve(found, hosts, 1, false, test_now_ns() + ms * MS, err);
}

static void check_address(const char *expected, const struct sockaddr_storage *address)
{
    char text[100] = "";
    CHECK(hfi_address_print(text, sizeof text, address));
    CHECK_STR(expected, text);
}

static void must_find(const char *host, const char *expected)
{
    struct hfi_addresses found;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, look_up(&found, host, test_ms(3000), &err), &err);
    check_address(expected, &found.list[0]);
}

/* Until the resolver has answered in time: on a busy machine what is known may stand in for it. */
static hf_status look_up_anew(struct hfi_addresses *found, const char *host, hf_error *err)
{
    hf_status status;
    int tries = 0;
    do
        status = look_up(found, host, test_ms(3000), err);
    while (status == HF_OK && found->known && ++tries < 50);
    return status;
}

static void check_soon(int64_t start_ns)
{
    CHECK(test_now_ns() - start_ns < test_ms(3000) * MS);
}

TEST(numbers_need_no_resolver)
{
    must_find("127.0.0.1", "127.0.0.1");
    must_find("::1", "::1");
}

TEST(the_families_take_turns)
{
    static const char *const expected[] = { "127.0.0.1", "::1", "127.0.0.2", "::2", "127.0.0.3" };
    struct hfi_addresses found;
    hf_error err = { 0 };
    hosts_answer("a.test", "127.0.0.1 127.0.0.2 127.0.0.3 ::1 ::2");
    REQUIRE_STATUS(HF_OK, look_up(&found, "a.test", test_ms(3000), &err), &err);
    REQUIRE_INT(5, found.count);
    for (size_t i = 0; i < 5; i++)
        check_address(expected[i], &found.list[i]);
}

TEST(each_lookup_asks_anew)
{
    hosts_answer("a.test", "127.0.0.1");
    must_find("a.test", "127.0.0.1");
    hosts_answer("a.test", "127.0.0.2");
    struct hfi_addresses found;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, look_up_anew(&found, "a.test", &err), &err);
    check_address("127.0.0.2", &found.list[0]);
}

TEST(what_is_known_stands_in_for_no_answer)
{
    struct hfi_addresses found;
    hf_error err = { 0 };
    hosts_answer("a.test", "127.0.0.1");
    must_find("a.test", "127.0.0.1");
    hosts_fail("a.test");
    must_find("a.test", "127.0.0.1");
    hosts_hang("a.test");
    int64_t start = test_now_ns();
    REQUIRE_STATUS(HF_OK, look_up(&found, "a.test", 10, &err), &err); /* its time is shorter than our patience */
    CHECK(found.known);
    for (int i = 0; i < 20; i++)
        must_find("a.test", "127.0.0.1");
    check_soon(start);
    CHECK_INT(1, hosts_hanging());
}

TEST(what_is_known_does_not_stand_in_for_a_no)
{
    struct hfi_addresses found;
    hf_error err = { 0 };
    hosts_answer("a.test", "127.0.0.1");
    must_find("a.test", "127.0.0.1");
    hosts_answer("a.test", "");
    CHECK_STATUS(HF_UNAVAILABLE, look_up_anew(&found, "a.test", &err), &err);
}

TEST(a_host_that_hangs_is_given_up_in_time)
{
    struct hfi_addresses found;
    hf_error err = { 0 };
    hosts_hang("a.test");
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, look_up(&found, "a.test", 300, &err), &err);
    CHECK(strstr(err.message, "a.test") != NULL);
    CHECK(test_now_ns() - start >= 300 * MS);
    check_soon(start);
}

TEST(a_host_that_hangs_does_not_hold_up_another)
{
    static const char *const hosts[] = { "a.test", "b.test" };
    struct hfi_addresses found[2];
    hf_error err = { 0 };
    hosts_hang("a.test");
    hosts_answer("b.test", "127.0.0.1");
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_OK, hfi_resolve(found, hosts, 2, false, start + 15000 * MS, &err), &err);
    check_soon(start);
    CHECK_INT(0, found[0].count);
    REQUIRE_INT(1, found[1].count);
    check_address("127.0.0.1", &found[1].list[0]);
}

static void *ask_in_vain(void *unused)
{
    struct hfi_addresses found;
    CHECK(look_up(&found, "a.test", 500, NULL) == HF_UNAVAILABLE);
    return unused;
}

TEST(many_wait_for_one_name_by_one_thread)
{
    pthread_t threads[8];
    hosts_hang("a.test");
    for (int i = 0; i < 8; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, ask_in_vain, NULL));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(1, hosts_hanging());
}

/* As many names as there is room for hang: no thread is started for another one, but numbers need none. */
TEST(names_that_hang_are_bounded_in_number)
{
    struct hfi_addresses found;
    hf_error err = { 0 };
    char name[20];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "%d.test", i);
        hosts_hang(name);
        CHECK_STATUS(HF_UNAVAILABLE, look_up(&found, name, 0, &err), &err);
    }
    hosts_answer("a.test", "127.0.0.1");
    CHECK_STATUS(HF_UNAVAILABLE, look_up(&found, "a.test", test_ms(3000), &err), &err);
    CHECK(strstr(err.message, "too many") != NULL);
    CHECK(hosts_hanging() <= MANY); /* and not one more */
    must_find("127.0.0.1", "127.0.0.1");
}

TEST(more_names_than_can_be_known_are_found)
{
    char name[20];
    for (int i = 0; i < MANY + 20; i++) {
        snprintf(name, sizeof name, "%d.test", i);
        hosts_answer(name, "127.0.0.1");
        must_find(name, "127.0.0.1");
    }
}

static void look_up_in_child(void *unused)
{
    (void)unused;
    hosts_answer("a.test", "127.0.0.1");
    must_find("a.test", "127.0.0.1");
}

TEST(a_child_has_no_share_in_what_its_parent_waits_for)
{
    struct hfi_lookup lookup;
    hosts_hang("a.test");
    REQUIRE(hfi_lookup_begin(&lookup, "a.test", false, NULL) == HF_TIMEOUT);
    helper_join(helper_start(look_up_in_child, NULL));
    CHECK(hfi_lookup_step(&lookup, "a.test", true, NULL) == HF_TIMEOUT);
    hfi_lookup_end(&lookup);
}
