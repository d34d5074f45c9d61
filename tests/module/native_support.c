/* SPDX-License-Identifier: MIT
 *
 * native_support.c: see native_support.h.
 */
#include "native_support.h"

#include "server_home.h"

#include <stdio.h>

const char *native_arguments(void)
{
    static char arguments[700];
    snprintf(arguments, sizeof arguments,
             "--loadmodule %s --appendonly yes --appendfsync always --notify-keyspace-events KEA "
             "--enable-module-command yes --enable-debug-command yes",
             home_need("TEST_NATIVE_MODULE"));
    return arguments;
}

struct redis_server *serve_natively(const char *arguments)
{
    char all[900];
    snprintf(all, sizeof all, "%s %s", native_arguments(), arguments);
    return redis_server_start(home_need("TEST_SERVER"), all);
}
