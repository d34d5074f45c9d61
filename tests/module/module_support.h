/* SPDX-License-Identifier: MIT
 *
 * module_support.h: what the tests of the server's module share. TEST_SERVER is the server that they run on,
 * TEST_SERVER_MODULE the module.
 */
#ifndef MODULE_SUPPORT_H
#define MODULE_SUPPORT_H

#include "redis_server.h"
#include "test.h"

/* 702 for 7.2 and its patches. Redis 6 lacks some options and commands that help to look at it. */
int server_version(void);

/* A server with the module, or without it; modules can be loaded later and DEBUG can be used. */
struct redis_server *serve_with_module(const char *arguments);
struct redis_server *serve_without_module(const char *arguments);
const char *module_path(void);

/* When `key` expires, in Unix milliseconds by the server's clock; -1: never, -2: there is no such key. */
int64_t expiry_of(struct redis_server *server, const char *key);
/* Exactly the same; on Redis 6, which cannot be asked for that, give or take a small part of the times used here. */
bool same_expiry(int64_t one, int64_t other);
int64_t server_now_ms(struct redis_server *server);

/* The answer must be this error, to the last letter. The reply is freed. */
void check_error(const char *file, int line, const char *expected, redisReply *reply);
#define CHECK_ERROR(expected_, ...) check_error(__FILE__, __LINE__, (expected_), redis_server_command(__VA_ARGS__))
/* The answer must be an error of this kind: its first word or words, which are the same in all versions. */
void check_error_kind(const char *file, int line, const char *expected, redisReply *reply);
#define CHECK_ERROR_KIND(expected_, ...)                                                                               \
    check_error_kind(__FILE__, __LINE__, (expected_), redis_server_command(__VA_ARGS__))
#define CHECK_ANSWER(expected_, ...) CHECK_INT((expected_), redis_server_number(__VA_ARGS__))
/* The answer must be this text; nil is "". */
void check_text(const char *file, int line, const char *expected, redisReply *reply);
#define CHECK_TEXT(expected_, ...) check_text(__FILE__, __LINE__, (expected_), redis_server_command(__VA_ARGS__))

#endif
