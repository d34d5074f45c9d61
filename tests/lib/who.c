/* SPDX-License-Identifier: MIT
 *
 * who.c: see who.h.
 */
#include "who.h"

#include "test.h"

#include <pwd.h>
#include <stdio.h>
#include <unistd.h>

void who_we_are(char *out, size_t size)
{
    char host[65] = "", buffer[1024];
    struct passwd entry, *user = NULL;
    gethostname(host, sizeof host - 1);
    if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &user) == 0 && user)
        snprintf(out, size, "%s@%s:%ld", user->pw_name, host, (long)getpid());
    else
        snprintf(out, size, "user %u@%s:%ld", (unsigned)geteuid(), host, (long)getpid());
}

void check_we_broke_it(const char *why)
{
    char who[200], words[250];
    who_we_are(who, sizeof who);
    snprintf(words, sizeof words, "it was broken by %s", who);
    CHECK_STR(words, why);
}
