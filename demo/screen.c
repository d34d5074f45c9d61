/* SPDX-License-Identifier: MIT
 *
 * screen.c: what the demonstration looks like. On a terminal the tills are drawn again and again in place; in a pipe
 * every line is printed once, as plain ASCII. NO_COLOR (https://no-color.org) takes away the colours and nothing
 * else.
 */
#include "demo.h"
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_CELLS 24
#define PICTURE_LINES (TILLS + 1)
#define PICTURE_COLUMNS 80

static bool in_place; /* the cursor can be moved up */
static bool coloured;
static const char *full_cell = "#";
static const char *empty_cell = ".";

static const char *colour(const char *code)
{
    return coloured ? code : "";
}

#define RED colour("\033[31m")
#define GREEN colour("\033[32m")
#define YELLOW colour("\033[33m")
#define BOLD colour("\033[1m")
#define DIM colour("\033[2m")
#define RESET colour("\033[0m")

void screen_start(void)
{
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    struct winsize size;

    coloured = terminal && !(no_color && no_color[0]);
    /* On a screen too small for the picture, moving up would draw over the wrong lines. */
    in_place = terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= PICTURE_COLUMNS &&
               size.ws_row > PICTURE_LINES + 2;
    setlocale(LC_CTYPE, "");
    if (terminal && strcmp(nl_langinfo(CODESET), "UTF-8") == 0) {
        full_cell = "\u2588";
        empty_cell = "\u00b7";
    }
}

void screen_title(const struct round *round)
{
    printf("%s%s%s\n", BOLD, round->locked ? "2. With holdfast" : "1. Without a lock", RESET);
    if (round->locked)
        printf("   The same, but each till takes the lock first and releases it afterwards.\n");
    else
        printf("   %d processes sell %d items: each reads the stock, thinks, and writes it back.\n", TILLS, ITEMS);
    fflush(stdout);
}

static void print_bar(int sold, int full_at, bool right)
{
    int cells = sold >= full_at ? BAR_CELLS : sold * BAR_CELLS / full_at;

    printf("%s", right ? GREEN : RED);
    for (int i = 0; i < cells; i++)
        printf("%s", full_cell);
    printf("%s%s", RESET, DIM);
    for (int i = cells; i < BAR_CELLS; i++)
        printf("%s", empty_cell);
    printf("%s", RESET);
}

static void print_doing(const struct round *round, const struct till *till)
{
    if (till->doing == FAILED)
        printf("  %sfailed%s", RED, RESET);
    if (!round->locked)
        return;
    if (till->doing == WAITING)
        printf("  %swaits %" PRId64 " ms%s", DIM, (now_us() - till->since_us) / 1000, RESET);
    if (till->doing == SERVING || till->doing == SOLD)
        printf("  %sHOLDS, token %" PRIu64 "%s", YELLOW, till->token, RESET);
    if (till->doing == CLOSED && till->sold > 0)
        printf("  waited %" PRId64 " ms, at most %" PRId64 " ms", till->waited_us / till->sold / 1000,
               till->longest_wait_us / 1000);
}

static void print_first_grants(const struct round *round)
{
    printf("   turns:");
    for (int i = 0; i < FIRST_GRANTS && i < round->receipts; i++)
        printf("%s till %d token %" PRIu64, i > 0 ? "," : "", round->first_grants[i].till + 1,
               round->first_grants[i].token);
    printf(", ...\n");
}

void screen_draw(const struct round *round, bool last)
{
    static bool drawn;
    const char *line_end = in_place ? "\033[K\n" : "\n";
    int full_at = round->locked ? ITEMS / 5 : ITEMS;
    int too_many = round->receipts - ITEMS;

    if (!in_place && !last)
        return;
    if (in_place && drawn)
        printf("\033[%dA", PICTURE_LINES);
    for (int i = 0; i < TILLS; i++) {
        printf("   till %d  ", i + 1);
        print_bar(round->tills[i].sold, full_at, too_many <= 0);
        printf(" %3d sold", round->tills[i].sold);
        print_doing(round, &round->tills[i]);
        printf("%s", line_end);
    }
    printf("   left %3d, sold %d", round->left, round->receipts);
    if (too_many > 0)
        printf(": %s%d more than there were%s", RED, too_many, RESET);
    printf("%s", line_end);
    if (last && round->locked)
        print_first_grants(round);
    fflush(stdout);
    drawn = !last;
}

static void print_row(const char *what, const char *without, const char *with, bool with_is_good)
{
    printf("   %-24s %18s   %s%24s%s\n", what, without, with_is_good ? GREEN : RED, with, RESET);
}

void screen_compare(const struct round *without, const struct round *with)
{
    char left[64], right[64];

    printf("\n%s   %-24s %18s   %24s%s\n", BOLD, "", "without a lock", "with holdfast", RESET);
    snprintf(left, sizeof left, "%d", ITEMS);
    print_row("items there were", left, left, true);
    snprintf(left, sizeof left, "%d", without->receipts);
    snprintf(right, sizeof right, "%d", with->receipts);
    print_row("items sold", left, right, with->receipts == ITEMS);
    snprintf(left, sizeof left, "%d", without->receipts - ITEMS);
    snprintf(right, sizeof right, "%d", with->receipts - ITEMS);
    print_row("customers to disappoint", left, right, with->receipts == ITEMS);
    snprintf(right, sizeof right, "%" PRIu64 " to %" PRIu64 ", %s", with->first_grants[0].token, with->last_token,
             with->tokens_grow ? "growing" : "NOT GROWING");
    print_row("fencing tokens", "-", right, with->tokens_grow);
    snprintf(right, sizeof right, "%d to %d", fewest_sold(with), most_sold(with));
    print_row("each till's share", "-", right, true);
    snprintf(right, sizeof right, "%" PRId64 " ms", longest_wait_us(with) / 1000);
    print_row("longest wait", "-", right, true);
    snprintf(left, sizeof left, "%.1f s", (double)without->took_us / 1e6);
    snprintf(right, sizeof right, "%.1f s", (double)with->took_us / 1e6);
    print_row("time", left, right, true);
    fflush(stdout);
}

void screen_verdict(bool right)
{
    if (right)
        printf("\n   %sSold exactly what there was.%s\n", GREEN, RESET);
    else
        printf("\n   %sThis is not what the demonstration should show.%s\n", RED, RESET);
    fflush(stdout);
}
