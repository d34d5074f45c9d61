/* SPDX-License-Identifier: MIT
 *
 * fuzz_url.c: URLs as users, environments and configuration files may give them. No crash, and no password in what is
 * shown.
 *
 * The passwords of the corpus contain SECRET, which stands nowhere else by chance.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/redis/redis.h"
#include "registry.h"

#include <stdlib.h>
#include <string.h>

#define SECRET "Xs3cretX"
#define URL_MOST 4096

const char *const fuzz_words[] = { "redis://",
                                   "rediss://",
                                   "redis+unix://",
                                   "redis+sentinel://",
                                   "redis+cluster://",
                                   "redlock://",
                                   "file://",
                                   "a,b:7001,[::1]:7002",
                                   "/mymaster",
                                   ",",
                                   "&dialect=plain",
                                   "&dialect=tair",
                                   "&dialect=redisson",
                                   "&tls=yes",
                                   "&sentinel_tls=no",
                                   ("&sentinel_user=" SECRET),
                                   ("user:" SECRET "@"),
                                   (":" SECRET "@"),
                                   SECRET,
                                   "@",
                                   "%2F",
                                   "%40",
                                   "%00",
                                   "[::1]",
                                   ":6379",
                                   "/0",
                                   "?db=3",
                                   "&prefix=a:",
                                   "&replicas=2",
                                   "&replica_timeout=9",
                                   "&timeout=100",
                                   "&connect_timeout=5",
                                   "&verify=no",
                                   "&fsync=yes",
                                   "&cafile=/x",
                                   "99999999999999999999",
                                   "#",
                                   NULL };

/* True if SECRET stands where a password does, even in a URL that is not one: behind "://" and a ':', before an '@'
 * and the options, and nowhere else. */
static bool secret_is_a_password(const char *url)
{
    const char *authority = strstr(url, "://");
    const char *colon = authority ? strchr(authority + 3, ':') : NULL;
    const char *secret = strstr(url, SECRET);
    const char *question = strchr(url, '?');
    return colon && secret > colon && strchr(secret, '@') && !strstr(secret + 1, SECRET) &&
           (!question || question > secret);
}

/* What the engines rely on. */
static void check_whole(const struct redis_config *config)
{
    FUZZ_REQUIRE(config->address_count > 0 && config->address_count <= HFI_REDIS_HOSTS_MOST);
    FUZZ_REQUIRE(config->address_count == 1 || config->kind != REDIS_ONE);
    FUZZ_REQUIRE(strlen(config->prefix) <= HFI_REDIS_PREFIX_MAX);
    FUZZ_REQUIRE(config->dialect && config->access.password && config->sentinel.password && config->sentinel.user);
    FUZZ_REQUIRE(config->kind != REDIS_SENTINEL || (config->master && *config->master && config->access.master));
    FUZZ_REQUIRE(config->kind != REDIS_CLUSTER || config->access.database == 0);
    FUZZ_REQUIRE(config->kind != REDIS_REDLOCK || (config->address_count % 2 == 1 && config->address_count >= 3));
}

static void check_redis(const struct hfi_url *url, const char *whole, const char *shown)
{
    struct redis_config config = { 0 };
    hf_error err = { 0 };
    const hf_status status = hfi_redis_config_read(&config, url, &err);
    if (status == HF_OK) {
        check_whole(&config);
        for (size_t i = 0; i < config.address_count; i++) {
            const long port = strtol(config.addresses[i].port, NULL, 10);
            FUZZ_REQUIRE(*config.addresses[i].host);
            FUZZ_REQUIRE((port >= 1 && port <= 65535) || !*config.addresses[i].port);
        }
        FUZZ_REQUIRE(config.access.database >= 0 && config.replicas >= 0 && config.replica_ms > 0);
        FUZZ_REQUIRE(config.timeout_ns >= 0 && config.access.connect_ns >= 0);
        /* What was understood as the password is not in what is shown. */
        if (strstr(config.access.password, SECRET) && secret_is_a_password(whole))
            FUZZ_REQUIRE(!strstr(shown, SECRET));
    } else {
        fuzz_check_words(status, &err);
        if (secret_is_a_password(whole))
            FUZZ_REQUIRE(!strstr(err.message, SECRET));
    }
    hfi_redis_config_free(&config);
}

/* Below a directory that is not there: whatever the rest says, nothing is made or opened. */
static void check_file(const char *rest)
{
    char nowhere[URL_MOST + 64];
    struct hfi_env env = { .now_ns = hfi_now_ns, .random = hfi_random };
    hf_error err = { 0 };
    struct hfi_opened opened = { 0 };
    snprintf(nowhere, sizeof nowhere, "///holdfast-fuzz-is-not-there/x/%s", rest);
    const struct hfi_url url = { "file", nowhere };
    void *store = hfi_alloc(hfi_engine_file.store_size);
    if (!store)
        return;
    const hf_status status = hfi_engine_file.open(store, &url, &env, &opened, &err);
    FUZZ_REQUIRE(status != HF_OK);
    fuzz_check_words(status, &err);
    hfi_engine_file.close(store);
    hfi_free(opened.shown);
    hfi_free(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[URL_MOST];
    char scheme[32];
    struct hfi_url url = { .scheme = scheme };
    hf_error err = { 0 };
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    unsetenv("HOLDFAST_PASSWORD");
    unsetenv("HOLDFAST_SENTINEL_PASSWORD");
    char *shown = hfi_url_without_password(text);
    if (!shown)
        return 0;
    FUZZ_REQUIRE(strlen(shown) <= strlen(text));
    char *again = hfi_url_without_password(shown);
    FUZZ_REQUIRE(!again || strcmp(again, shown) == 0);
    hfi_free(again);
    const hf_status status = hfi_url_split(scheme, &url.rest, text, &err);
    if (status != HF_OK) {
        fuzz_check_words(status, &err);
    } else if (strstr(text, "password_file")) {
        /* would read whatever file the fuzzer thinks of */
    } else {
        check_redis(&url, text, shown);
        check_file(url.rest);
    }
    hfi_free(shown);
    return 0;
}
