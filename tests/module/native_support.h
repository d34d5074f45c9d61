/* SPDX-License-Identifier: MIT
 *
 * native_support.h: what the tests of holdfast.so share, beside what module_support.h offers. TEST_NATIVE_MODULE is
 * that module.
 */
#ifndef NATIVE_SUPPORT_H
#define NATIVE_SUPPORT_H

#include "module_support.h"

/* How a server is started with the module, a log on disk that is always up to date, and all events. */
const char *native_arguments(void);
/* A server of TEST_SERVER with the module. */
struct redis_server *serve_natively(const char *arguments);

#endif
