/* SPDX-License-Identifier: MIT
 *
 * sqlite_answer.c: what SQLite's refusals mean to the caller, in one sentence.
 *
 * hf_error.native is SQLite's extended result code.
 */
#include "sqlite.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A file that may not be made is tried once more without making it, so that SQLite tells of one that is not there. */
static int reason(const struct sqlite_store *store)
{
    const int number = sqlite3_system_errno(store->connection.db);
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", store->config.path);
    *strrchr(folder, '/') = 0;
    const char *path = *folder ? folder : "/";
    const bool unwritable = euidaccess(path, F_OK) == 0 && euidaccess(path, W_OK) != 0;
    return number == ENOENT && store->config.create && unwritable ? EACCES : number;
}

static hf_status cannot_open(const struct sqlite_store *store, int code, hf_error *err)
{
    const int number = reason(store);
    if (number == ENOENT && !store->config.create)
        return hfi_fail(err, HF_INVALID, code, "there is no database %.150s, and create=no says not to make one",
                        store->config.path);
    if (number)
        return hfi_fail_errno(err, number, "open", store->config.path);
    return hfi_fail(err, HF_UNAVAILABLE, code, "cannot open %.150s or its journal", store->config.path);
}

/* Where the kernel has said why, its number decides: no descriptors left, no rights. A write may have been done, in
 * whole or in part, whatever it says. */
static hf_status input_output(const struct sqlite_store *store, int code, enum sqlite_kind kind, hf_error *err)
{
    const int number = sqlite3_system_errno(store->connection.db);
    const hf_status status = kind == LITE_KIND_READ ? HF_UNAVAILABLE : HF_UNKNOWN;
    return hfi_fail(err, number == EMFILE || number == ENFILE ? HF_NOMEM : status, code,
                    "cannot read or write %.120s: %s (errno %d)", store->config.path, sqlite3_errstr(code), number);
}

hf_status hfi_sqlite_refusal(const struct sqlite_store *store, int code, enum sqlite_kind kind, hf_error *err)
{
    const char *path = store->config.path;
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
        return hfi_fail(err, HF_UNAVAILABLE, code, "%.150s was locked by another program until the deadline", path);
    case SQLITE_CANTOPEN:
        return cannot_open(store, code, err);
    case SQLITE_IOERR:
        return input_output(store, code, kind, err);
    case SQLITE_READONLY:
        return hfi_fail(err, HF_DENIED, code, "%.150s or its folder is read-only for this user", path);
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return hfi_fail(err, HF_DENIED, code, "%.150s refuses this user", path);
    case SQLITE_FULL:
        return hfi_fail(err, HF_UNAVAILABLE, code, "the disk or the quota of %.150s is full", path);
    case SQLITE_NOTADB:
        return hfi_fail(err, HF_INVALID, code, "%.150s is not an SQLite database, or is encrypted", path);
    case SQLITE_CORRUPT:
        return hfi_fail(err, HF_INTERNAL, code, "%.150s is damaged; see what PRAGMA integrity_check says", path);
    case SQLITE_NOMEM:
        return hfi_fail(err, HF_NOMEM, code, "no memory for a statement");
    case SQLITE_ERROR:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
        return hfi_fail(err, HF_INVALID, code, "%.100s refused: %.100s", path, sqlite3_errmsg(store->connection.db));
    default:
        return hfi_fail(err, HF_INTERNAL, code, "%.100s gave an answer that makes no sense: %.80s", path,
                        sqlite3_errmsg(store->connection.db));
    }
}
