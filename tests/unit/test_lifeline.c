/* SPDX-License-Identifier: MIT
 *
 * test_lifeline.c: what is said to a client by its FIFO, also between versions, and by neighbours who mean no good.
 */
#include "engines/local.h"
#include "file_tests.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ID 0x1234u
#define FIFO ".c-0000000000001234"

struct line {
    int folder;
    struct hfi_lifeline lifeline;
    struct hfi_message heard;
    char text[HFI_LIFELINE_TEXT_MAX + 1];
};

static struct line open_line(void)
{
    struct line line = { .folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    REQUIRE(hfi_lifeline_open(&line.lifeline, line.folder, 0600, ID));
    return line;
}

static void close_line(struct line *line)
{
    hfi_lifeline_close(&line->lifeline, line->folder);
    close(line->folder);
}

static void tell(const struct line *line, uint64_t number, const char *text)
{
    const struct hfi_message message = { .kind = 1, .inode = 2, .number = number };
    CHECK(hfi_lifeline_tell(line->folder, ID, &message, text));
}

static void check_hears(struct line *line, uint64_t number, const char *text)
{
    REQUIRE(hfi_lifeline_read(&line->lifeline, &line->heard, line->text));
    CHECK_INT(1, line->heard.kind);
    CHECK_INT(2, line->heard.inode);
    CHECK_INT(number, line->heard.number);
    CHECK_STR(text, line->text);
}

TEST(words_come_with_their_message)
{
    char longest[HFI_LIFELINE_TEXT_MAX + 1] = "", longer[HFI_LIFELINE_TEXT_MAX + 100] = "";
    set_up();
    struct line line = open_line();
    memset(longest, 'x', sizeof longest - 1);
    memset(longer, 'x', sizeof longer - 1);
    tell(&line, 1, "");
    tell(&line, 2, "root@there:17");
    tell(&line, 3, "twenty-four of them: abc");
    tell(&line, 4, longest);
    tell(&line, 5, longer);
    tell(&line, 6, "\033[2Jroot\303\274");
    check_hears(&line, 1, "");
    check_hears(&line, 2, "root@there:17");
    check_hears(&line, 3, "twenty-four of them: abc");
    check_hears(&line, 4, longest);
    check_hears(&line, 5, longest);
    check_hears(&line, 6, "?[2Jroot??");
    CHECK(!hfi_lifeline_read(&line.lifeline, &line.heard, line.text));
    close_line(&line);
    tear_down(false);
}

/* Version 0.1 writes a message alone, and reads one of that size at a time; what it does not know it skips. */
TEST(version_0_1_is_understood_and_understands)
{
    static const struct hfi_message old = { .magic = "hftells", .kind = 1, .inode = 2, .number = 3 };
    struct hfi_message read_by_old = { .kind = 0 };
    set_up();
    struct line line = open_line();
    const int fd = open(in_directory(FIFO), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    REQUIRE_INT(sizeof old, write(fd, &old, sizeof old));
    check_hears(&line, 3, "");
    tell(&line, 4, "root@there:17, a name that needs more than one piece");
    int skipped = 0;
    while (read(fd, &read_by_old, sizeof read_by_old) == (ssize_t)sizeof read_by_old &&
           memcmp(read_by_old.magic, old.magic, sizeof old.magic) != 0)
        skipped++;
    CHECK_INT(3, skipped);
    CHECK_INT(4, read_by_old.number);
    CHECK(read(fd, &read_by_old, sizeof read_by_old) < 0);
    close(fd);
    close_line(&line);
    tear_down(false);
}

/* Words without end are cut, and what comes after them is heard again. */
TEST(endless_words_are_not_read_for_ever)
{
    const char piece[32] = "hfwords\0abcdefghijklmnopqrstuvw";
    set_up();
    struct line line = open_line();
    const int fd = open(in_directory(FIFO), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    for (int i = 0; i < 20; i++)
        REQUIRE_INT(sizeof piece, write(fd, piece, sizeof piece));
    tell(&line, 1, "root");
    bool heard = false;
    for (int i = 0; i < 20 && !heard; i++) {
        heard = hfi_lifeline_read(&line.lifeline, &line.heard, line.text);
        CHECK(strlen(line.text) <= HFI_LIFELINE_TEXT_MAX);
    }
    CHECK(heard);
    CHECK_INT(1, line.heard.number);
    close(fd);
    close_line(&line);
    tear_down(false);
}
