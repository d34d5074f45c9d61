/* SPDX-License-Identifier: MIT
 *
 * error.c: statuses and sentences.
 */
#include "core.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *hf_version(void)
{
    return VERSION(HF_VERSION_MAJOR, HF_VERSION_MINOR, HF_VERSION_PATCH);
}

const char *hf_status_name(hf_status status)
{
    switch (status) { /* no default: a status without a name does not build */
    case HF_OK:
        return "HF_OK";
    case HF_BUSY:
        return "HF_BUSY";
    case HF_TIMEOUT:
        return "HF_TIMEOUT";
    case HF_LOST:
        return "HF_LOST";
    case HF_CANCELED:
        return "HF_CANCELED";
    case HF_DONE:
        return "HF_DONE";
    case HF_UNAVAILABLE:
        return "HF_UNAVAILABLE";
    case HF_UNKNOWN:
        return "HF_UNKNOWN";
    case HF_DENIED:
        return "HF_DENIED";
    case HF_INVALID:
        return "HF_INVALID";
    case HF_UNSUPPORTED:
        return "HF_UNSUPPORTED";
    case HF_NOMEM:
        return "HF_NOMEM";
    case HF_INTERNAL:
        return "HF_INTERNAL";
    }
    return "unknown status";
}

hf_status hfi_fail(hf_error *err, hf_status status, int native, const char *format, ...)
{
    if (!err)
        return status;
    err->status = status;
    err->native = native;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->message, sizeof err->message, format, arguments);
    va_end(arguments);
    for (char *c = err->message; *c; c++) { /* a server's words may hold anything; ours are one line */
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = ' ';
    }
    return status;
}

hf_status hfi_pass_on(hf_status status, const hf_error *trouble, hf_error *err)
{
    if (status != HF_OK && err)
        *err = *trouble;
    return status;
}

static hf_status errno_status(int number)
{
    switch (number) {
    case EACCES:
    case EPERM:
    case EROFS:
        return HF_DENIED;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
        return HF_NOMEM;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
    case ELOOP:
        return HF_INVALID;
    case EOPNOTSUPP:
    case ENOSYS:
        return HF_UNSUPPORTED;
    default:
        return HF_UNAVAILABLE;
    }
}

hf_status hfi_fail_errno(hf_error *err, int number, const char *verb, const char *object)
{
    char reason[80];
    return hfi_fail(err, errno_status(number), number, "cannot %s %s: %s", verb, object,
                    strerror_r(number, reason, sizeof reason));
}

void hfi_say_broken(char out[HFI_WHY_MAX], const char *by)
{
    char who[161];
    hfi_text_clean(who, sizeof who, *by ? by : "an administrator");
    snprintf(out, HFI_WHY_MAX, "it was broken by %s", who);
}
