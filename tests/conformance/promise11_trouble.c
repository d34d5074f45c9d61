/* SPDX-License-Identifier: MIT
 *
 * Promise 11, trouble is named: a status and one plain sentence for everything that can be wrong with what the caller
 * asks, and never a password. (What can be wrong with a store is tried per engine.)
 */
#include "conformance.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void check_sentence(const hf_error *err, hf_status status)
{
    CHECK_STATUS(status, err->status, err);
    REQUIRE(memchr(err->message, '\0', sizeof err->message) != NULL);
    CHECK(*err->message != '\0');
    CHECK(strpbrk(err->message, "\r\n") == NULL);
}

PROMISE(p11_urls_that_make_no_sense, 0)
{
    static const char *const urls[] = {
        "", ":", "://", "nonsense", "no-such-engine:", "no-such-engine://host/", " mem:", "/tmp", "1file:"
    };
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        hf_client *client = NULL;
        hf_error err = { 0 };
        if (!CHECK_STATUS(HF_INVALID, hf_open(&client, urls[i], NULL, &err), &err))
            test_note("for the URL \"%s\"", urls[i]);
        CHECK(client == NULL);
        check_sentence(&err, HF_INVALID);
        hf_close(client);
    }
}

PROMISE(p11_a_password_is_never_shown, 0)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_open(&client, "no-such-engine://me:open-sesame@host/db", NULL, &err), &err);
    check_sentence(&err, HF_INVALID);
    CHECK(strstr(err.message, "open-sesame") == NULL);
    hf_close(client);
    client = open_client();
    CHECK(*hf_url(client) != '\0');
    const char *at = strchr(store_url, '@'), *slashes = strstr(store_url, "://");
    const char *colon = slashes ? strchr(slashes + 3, ':') : NULL;
    if (at && colon && colon < at) {
        char secret[300] = "";
        memcpy(secret, colon, (size_t)(at - colon) < sizeof secret - 1 ? (size_t)(at - colon) : sizeof secret - 1);
        CHECK(strstr(hf_url(client), secret) == NULL);
    }
    hf_close(client);
}

static void check_refused(hf_client *client, const hf_options *options, const char *what)
{
    struct name name = unique_name("x");
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    if (!CHECK_STATUS(HF_INVALID, hf_acquire(&lock, client, name.text, options, &err), &err))
        test_note("with %s", what);
    CHECK(lock == NULL);
    check_sentence(&err, HF_INVALID);
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&lock, client, name.text, options, NULL), NULL);
    CHECK(lock == NULL);
}

PROMISE(p11_options_that_make_no_sense, 0)
{
    const hf_options good = HF_OPTIONS_INIT;
    hf_options bad;
    char long_text[300];
    hf_client *client = open_client();
    memset(long_text, 'x', sizeof long_text);
    long_text[256] = '\0';

    bad = good, bad.ttl_ms = 99;
    check_refused(client, &bad, "a time-to-live that is too short");
    bad = good, bad.owner = HF_OWNER_TEXT;
    check_refused(client, &bad, "no owner text");
    bad.owner_text = "";
    check_refused(client, &bad, "an empty owner text");
    bad.owner_text = long_text;
    check_refused(client, &bad, "an owner text that is too long");
    bad = good, bad.owner = (hf_owner_kind)77;
    check_refused(client, &bad, "an unknown kind of owner");
    bad = good, bad.renew = (hf_renew_mode)77;
    check_refused(client, &bad, "an unknown kind of renewal");
    bad = good, bad.note = "two\nlines";
    check_refused(client, &bad, "a control character in the note");
    long_text[121] = '\0';
    bad = good, bad.note = long_text;
    check_refused(client, &bad, "a note that is too long");
    bad = good, bad.size = 0;
    check_refused(client, &bad, "no size");

    /* Right at the limits all is well. */
    struct name name = unique_name("x");
    hf_options edge = good;
    long_text[120] = '\0';
    edge.note = long_text;
    edge.ttl_ms = 100;
    while (hf_release(must_acquire(client, name.text, &edge), NULL) != HF_OK) /* it is over soon on a busy machine */
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
    hf_close(client);
}

PROMISE(p11_a_handle_of_another_name_is_refused, 0)
{
    struct name one = unique_name("one"), two = unique_name("two");
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = must_acquire(client, one.text, NULL), *none = NULL;
    hf_error err = { 0 };
    options.owner = HF_OWNER_HANDLE;
    options.owner_handle = lock;
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&none, client, two.text, &options, &err), &err);
    check_sentence(&err, HF_INVALID);
    must_release(lock);
    hf_close(client);
}

PROMISE(p11_an_error_is_written_only_when_something_failed, 0)
{
    struct name name = unique_name("x");
    hf_error err, before;
    hf_client *client = NULL;
    hf_lock *lock = NULL;
    memset(&before, 'z', sizeof before);
    err = before;
    CHECK_STATUS(HF_OK, hf_open(&client, store_url, NULL, &err), NULL);
    CHECK_STATUS(HF_OK, hf_acquire(&lock, client, name.text, NULL, &err), NULL);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), NULL);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), NULL);
    CHECK(memcmp(&err, &before, sizeof err) == 0);
    hf_close(client);
}

PROMISE_WITHOUT(p11_a_store_that_cannot_inspect_says_so, 0, HF_CAP_INSPECT)
{
    hf_client *client = open_client();
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNSUPPORTED, hf_inspect(client, NULL, NULL, NULL, &err), &err);
    check_sentence(&err, HF_UNSUPPORTED);
    hf_close(client);
}

PROMISE_WITHOUT(p11_a_store_that_cannot_break_says_so, 0, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_error err = { 0 };
    CHECK_STATUS(HF_UNSUPPORTED, hf_break(client, name.text, &err), &err);
    check_sentence(&err, HF_UNSUPPORTED);
    hf_close(client);
}

/* Leaves room for `spare` more descriptors than are open. */
static void limit_descriptors(rlim_t spare)
{
    struct rlimit limit;
    REQUIRE_INT(0, getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    if (spare != RLIM_INFINITY) {
        int lowest = dup(STDOUT_FILENO);
        REQUIRE(lowest >= 0);
        close(lowest);
        limit.rlim_cur = (rlim_t)lowest + spare;
    }
    REQUIRE_INT(0, setrlimit(RLIMIT_NOFILE, &limit));
}

PROMISE(p11_without_descriptors_it_says_so_and_recovers, 0)
{
    struct name name = unique_name("x");
    for (rlim_t spare = 0; spare < 12; spare++) {
        hf_client *client = NULL;
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        limit_descriptors(spare);
        hf_status status = hf_open(&client, store_url, NULL, &err);
        if (status == HF_OK)
            status = hf_try_acquire(&lock, client, name.text, NULL, &err);
        if (status != HF_OK) {
            CHECK_STATUS(HF_NOMEM, status, &err);
            check_sentence(&err, status);
        }
        limit_descriptors(RLIM_INFINITY);
        CHECK((lock != NULL) == (status == HF_OK));
        hf_release(lock, NULL);
        /* The same client is as good as new once there are descriptors again. */
        if (client)
            check_becomes_free(client, name.text);
        hf_close(client);
    }
    hf_client *client = open_client();
    check_free(client, name.text);
    hf_close(client);
}

PROMISE(p11_null_is_nothing_to_free, 0)
{
    hf_close(NULL);
    hf_release(NULL, NULL);
}
