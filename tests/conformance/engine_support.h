/* SPDX-License-Identifier: MIT
 *
 * engine_support.h: what the tests of single engines share, beside the support of the conformance suite: they choose
 * their stores themselves, one after the other.
 */
#ifndef ENGINE_SUPPORT_H
#define ENGINE_SUPPORT_H

#include "conformance.h"
#include "findings.h"

/* Makes `url` the store of open_client(). */
void use_url(const char *url);

/* Opens `url` and expects `status`, and `words` in the sentence. No password is in it, nor in hf_url(); where one is
 * used, "sesame" is part of it. */
void check_open(const char *url, hf_status status, const char *words);
/* The same of a URL that is made of the format. */
void check_open_at(hf_status status, const char *words, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Opens `url`, and has a lock there. It is the store of open_client() from then on. */
void check_works(const char *url);
/* The sentence, and the status with it. */
void check_error(const hf_error *err, hf_status status, const char *words);

/* A holder that was broken is told by whom: when it renews, whether somebody waits or not, and when it releases. */
void check_broken_is_told(void);
/* The same when it is renewed with others. */
void check_broken_is_told_with_others(uint32_t ttl_ms);
/* The same of a name that a client of `bound`, a strategy that is bound to its connection, has had before; which goes
 * on being shown as the holder, should it have the lock beside: `excludes` tells whether it cannot. */
void check_broken_is_told_after(const char *bound, bool excludes);
/* What an earlier break has left says nothing about another hold, and a break that came to nothing leaves nothing.
 * `notes` counts what breaks have left in the server, `remove` takes the lock out of it. */
void check_broken_is_not_told_of_others(const char *name, void *server, int64_t (*notes)(void *server),
                                        void (*remove)(void *server, const char *name));

/* As must_find(), of a session that begins now. */
void found(hf_finding_level level, const char *what, const char *words);

/* For a second this process does next to nothing. */
void check_rests(void);

#endif
