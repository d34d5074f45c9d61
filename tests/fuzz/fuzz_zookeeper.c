/* SPDX-License-Identifier: MIT
 *
 * fuzz_zookeeper.c: what the zookeeper: engine reads that others wrote: URLs, the names of nodes and directories, and
 * marks. No crash, no password in a message, and no two names for one directory.
 *
 * The passwords of the corpus contain SECRET, which stands nowhere else by chance.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/zookeeper/zookeeper.h"

#include <string.h>

#define SECRET "Xs3cretX"
#define TEXT_MOST 4096

const char *const fuzz_words[] = { "//",
                                   ("user:" SECRET "@"),
                                   "user@",
                                   "zk1,zk2:2182,[::1]:2183",
                                   ":2181",
                                   "[",
                                   "]",
                                   ",",
                                   "/holdfast",
                                   "/a/b",
                                   "/..",
                                   "/zookeeper",
                                   "?style=kazoo",
                                   "&style=curator",
                                   "&acl=creator",
                                   "&acl=open",
                                   "&auth=digest",
                                   "&session_timeout=5000",
                                   "%2F",
                                   "%40",
                                   "%00",
                                   "%F0%9F%94%92",
                                   "_c_01234567-89ab-cdef-0123-456789abcdef-lock-",
                                   "__lock__",
                                   "0000000000",
                                   "2147483647",
                                   "-2147483648",
                                   "-000000001",
                                   "9999999999",
                                   NULL };

static void check_url(const char *text)
{
    struct zookeeper_config config = { 0 };
    hf_error err = { 0 };
    const struct hfi_url url = { "zookeeper", text };
    const char *query = strchr(text, '?');
    const char *secret = strstr(text, SECRET), *colon = strchr(text, ':');
    const bool is_password = secret && colon && colon < secret && strchr(secret, '@') && (!query || query > secret) &&
                             !strstr(secret + 1, SECRET);
    const hf_status status = hfi_zookeeper_config_read(&config, &url, &err);
    if (status == HF_OK) {
        FUZZ_REQUIRE(config.hosts && *config.hosts && strchr(config.hosts, ':'));
        FUZZ_REQUIRE(config.prefix[0] == '/' && config.prefix[1]);
        FUZZ_REQUIRE(!config.creator_only || config.credentials);
        FUZZ_REQUIRE(!config.credentials || strchr(config.credentials, ':'));
    } else {
        FUZZ_REQUIRE(err.status == status && *err.message);
        FUZZ_REQUIRE(!is_password || !strstr(err.message, SECRET));
    }
    hfi_zookeeper_config_free(&config);
}

static void check_names(const char *text)
{
    char encoded[HFI_NAME_ENCODED_MAX], decoded[HFI_NAME_MAX + 1];
    int32_t number;
    hfi_zookeeper_sequence(text, &number);
    if (hfi_name_check(text)) {
        hfi_zookeeper_name_encode(encoded, text);
        FUZZ_REQUIRE(hfi_zookeeper_component_check(encoded, strlen(encoded)));
        FUZZ_REQUIRE(hfi_zookeeper_name_decode(decoded, encoded) && strcmp(decoded, text) == 0);
    }
    if (hfi_zookeeper_name_decode(decoded, text)) {
        hfi_zookeeper_name_encode(encoded, decoded);
        FUZZ_REQUIRE(strcmp(encoded, text) == 0);
    }
}

static void check_mark(char *text)
{
    struct zookeeper_mark mark;
    const struct Stat stat = { .mtime = 1000 };
    const bool counts = hfi_zookeeper_mark_read(&mark, text, &stat, 2000);
    FUZZ_REQUIRE(counts == (mark.left_ms > 0) && mark.ago_ms == 1000);
    FUZZ_REQUIRE(mark.who >= text && mark.who <= text + strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_MOST];
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    unsetenv("HOLDFAST_PASSWORD");
    if (!strstr(text, "password_file")) /* would read whatever file the fuzzer thinks of */
        check_url(text);
    check_names(text);
    check_mark(text);
    return 0;
}
