/* SPDX-License-Identifier: MIT
 *
 * demo.h: what the tills of the demonstration (tills.c) and its screen (screen.c) both know.
 */
#ifndef DEMO_H
#define DEMO_H

#include <stdbool.h>
#include <stdint.h>

#define TILLS 6
#define ITEMS 100
#define FIRST_GRANTS 4

/* What a till is doing; also the kinds of news that it sends to the parent. */
enum doing { STARTING, WAITING, SERVING, SOLD, CLOSED, FAILED };

struct till {
    enum doing doing;
    int sold;
    int64_t since_us; /* when it began to do that */
    int64_t waited_us;
    int64_t longest_wait_us;
    uint64_t token; /* of the newest grant */
};

struct grant {
    int till;
    uint64_t token;
};

struct round {
    bool locked;
    struct till tills[TILLS];
    int receipts;
    int left; /* as the newest receipt says */
    struct grant first_grants[FIRST_GRANTS];
    uint64_t last_token;
    bool tokens_grow;
    int64_t took_us;
};

int64_t now_us(void);
int fewest_sold(const struct round *round);
int most_sold(const struct round *round);
int64_t longest_wait_us(const struct round *round);

void screen_start(void);
void screen_title(const struct round *round);
/* Draws over what it drew before, on a terminal; otherwise prints the last picture alone. */
void screen_draw(const struct round *round, bool last);
void screen_compare(const struct round *without, const struct round *with);
void screen_verdict(bool right);

#endif
