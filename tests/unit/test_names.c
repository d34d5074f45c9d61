/* SPDX-License-Identifier: MIT
 *
 * test_names.c: names, their encoding, and URLs.
 */
#include "core.h"
#include "engines/file/file.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

TEST(good_and_bad_names)
{
    static const char *const good[] = { "a",   "a/b", "../x", "A", "\xe9\x94\x81",
                                        "%00", ".",   "..",   " ", "\xf0\x9f\x94\x92" };
    static const char *const bad[] = { "",     "\n",       "a\tb",     "\x7f",         "\xc2\x85",
                                       "\xff", "\xc0\xaf", "\xe9\x94", "\xed\xa0\x80", "\xf5\x80\x80\x80" };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK(hfi_name_check(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(!hfi_name_check(bad[i]));
    CHECK(!hfi_name_check(NULL));
    char name[258];
    memset(name, 'x', sizeof name);
    name[256] = 0;
    CHECK(!hfi_name_check(name));
    name[255] = 0;
    CHECK(hfi_name_check(name));
    memcpy(name + 253, "\xe9\x94\x81", 4); /* 256 bytes: the last character crosses the limit */
    CHECK(!hfi_name_check(name));
}

TEST(what_others_have_written_is_shown_without_control_characters)
{
    char out[8];
    static const struct {
        const char *text, *shown;
    } cases[] = {
        { "joe@web", "joe@web" },
        { "joe@web3", "joe@web" },
        { "a\n\x1b\x7f", "a???" },
        { "\xc2\x9b"
          "2J",
          "??2J" }, /* moves cursors, too */
        { "\xc3\xa4\xc3\xb6", "\xc3\xa4\xc3\xb6" },
        { "12345\xe2\x82\xac", "12345" }, /* whole, or not at all */
        { "\xe2\x82", "??" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hfi_text_clean(out, sizeof out, cases[i].text);
        CHECK_STR(cases[i].shown, out);
    }
}

TEST(a_plain_word_stays_itself)
{
    char out[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(out, "nightly-report.v2");
    CHECK_STR("nightly-report.v2", out);
    hfi_name_encode(out, "../a/b%");
    CHECK_STR("%2E.%2Fa%2Fb%25", out);
}

TEST(different_names_have_different_files_and_come_back)
{
    static const char *const names[] = { "a",   "a/b", "a%2Fb", "../x", "%2E./x", "A", "\xe9\x94\x81",
                                         "%00", ".",   "..",    "%2E" };
    const size_t count = sizeof names / sizeof names[0];
    for (size_t i = 0; i < count; i++) {
        char mine[HFI_FILE_NAME_MAX + 1], theirs[HFI_FILE_NAME_MAX + 1], back[HFI_NAME_MAX + 1];
        hfi_file_name(mine, names[i]);
        CHECK(mine[0] != '.' && !strchr(mine, '/'));
        CHECK(hfi_name_decode(back, sizeof back, mine));
        CHECK_STR(names[i], back);
        for (size_t j = 0; j < i; j++) {
            hfi_file_name(theirs, names[j]);
            CHECK(strcmp(mine, theirs) != 0);
        }
    }
}

TEST(what_encode_never_writes_is_not_decoded)
{
    static const char *const foreign[] = { "%", "%4", "%zz", "%2f", "%41", "a/b", ".hidden", "", "%00", "%0A" };
    char out[HFI_NAME_MAX + 1];
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        CHECK(!hfi_name_decode(out, sizeof out, foreign[i]));
}

TEST(names_that_grow_too_long_get_a_file_of_their_own)
{
    char slashes[256], other[256], one[HFI_FILE_NAME_MAX + 1], two[HFI_FILE_NAME_MAX + 1];
    memset(slashes, '/', 255);
    slashes[255] = 0;
    memcpy(other, slashes, sizeof other);
    other[254] = 'x';
    hfi_file_name(one, slashes);
    hfi_file_name(two, other);
    CHECK(strlen(one) <= HFI_FILE_NAME_MAX);
    CHECK(strcmp(one, two) != 0);
}

TEST(urls_are_split_and_shown_without_password)
{
    static const char *const cases[][2] = {
        { "redis://user:secret@host:6379/0", "redis://user@host:6379/0" },
        { "redis://:sec@ret@host/", "redis://@host/" },
        { "redis://host/a:b@c", "redis://host/a:b@c" },
        { "mem:", "mem:" },
        { "postgres://u:p@h/d?x=y:z@w", "postgres://u@h/d?x=y:z@w" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *shown = hfi_url_without_password(cases[i][0]);
        CHECK_STR(cases[i][1], shown);
        hfi_free(shown);
    }
    char scheme[32];
    const char *rest;
    CHECK_STATUS(HF_OK, hfi_url_split(scheme, &rest, "FILE:///x", NULL), NULL);
    CHECK_STR("file", scheme);
    CHECK_STR("///x", rest);
    static const char *const bad[] = { "", "x", ":", "/x:", "a b:c", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_STATUS(HF_INVALID, hfi_url_split(scheme, &rest, bad[i], NULL), NULL);
}

TEST(every_status_has_a_name)
{
    CHECK_STR("HF_OK", hf_status_name(HF_OK));
    CHECK_STR("HF_INTERNAL", hf_status_name(HF_INTERNAL));
    CHECK_STR("unknown status", hf_status_name((hf_status)99));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", HF_VERSION_MAJOR, HF_VERSION_MINOR, HF_VERSION_PATCH);
    CHECK_STR(version, hf_version());
}
