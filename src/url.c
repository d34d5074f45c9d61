/* SPDX-License-Identifier: MIT
 *
 * url.c: the little that the core needs to know of URLs, and what engines need to read theirs.
 */
#include "core.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCHEME_MAX 31

hf_status hfi_url_split(char *scheme, const char **rest, const char *url, hf_error *err)
{
    const char *colon = strchr(url, ':');
    const size_t length = colon ? (size_t)(colon - url) : 0;
    if (length == 0 || length > SCHEME_MAX)
        return hfi_fail(err, HF_INVALID, 0, "a URL must start with a scheme such as \"file:\" or \"mem:\"");
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)url[i]) && !strchr("+-.", url[i]))
            return hfi_fail(err, HF_INVALID, 0, "a URL must start with a scheme such as \"file:\" or \"mem:\"");
        scheme[i] = (char)tolower((unsigned char)url[i]);
    }
    scheme[length] = 0;
    *rest = colon + 1;
    return HF_OK;
}

char *hfi_url_without_password(const char *url)
{
    char *copy = hfi_strdup(url);
    char *authority = copy ? strstr(copy, "://") : NULL;
    if (!authority)
        return copy;
    authority += 3;
    /* Up to the last '@' before the path: a password may contain one. */
    const size_t length = strcspn(authority, "/?");
    char *at = memrchr(authority, '@', length);
    char *colon = at ? memchr(authority, ':', (size_t)(at - authority)) : NULL;
    if (colon)
        memmove(colon, at, strlen(at) + 1);
    return copy;
}

/* --- for engines --- */

static int digit(char c)
{
    const char *digits = "0123456789abcdefABCDEF";
    const char *place = c ? strchr(digits, c) : NULL;
    const int value = place ? (int)(place - digits) : -1;
    return value > 15 ? value - 6 : value;
}

hf_status hfi_url_decode(char out[HFI_URL_TEXT_MAX], const char *text, size_t length, hf_error *err)
{
    size_t used = 0;
    out[0] = 0;
    if (length >= HFI_URL_TEXT_MAX)
        return hfi_fail(err, HF_INVALID, 0, "a part of the URL is too long");
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '%') {
            const int high = i + 2 < length ? digit(text[i + 1]) : -1;
            const int low = high >= 0 ? digit(text[i + 2]) : -1;
            if (low < 0 || (high == 0 && low == 0))
                return hfi_fail(err, HF_INVALID, 0, "%% must be followed by two hexadecimal digits in a URL, not 00");
            c = (char)(high << 4 | low);
            i += 2;
        }
        out[used++] = c;
    }
    out[used] = 0;
    return HF_OK;
}

hf_status hfi_url_keep(char **field, const char *text, hf_error *err)
{
    hfi_free(*field);
    *field = hfi_strdup(text);
    return *field ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

hf_status hfi_url_keep_decoded(char **field, const char *text, size_t length, hf_error *err)
{
    char decoded[HFI_URL_TEXT_MAX];
    hf_status status = hfi_url_decode(decoded, text, length, err);
    if (status == HF_OK)
        status = hfi_url_keep(field, decoded, err);
    explicit_bzero(decoded, sizeof decoded); /* it may be a password */
    return status;
}

hf_status hfi_url_read_switch(bool *out, const char *name, const char *value, hf_error *err)
{
    *out = strcmp(value, "yes") == 0;
    return *out || strcmp(value, "no") == 0 ? HF_OK : hfi_fail(err, HF_INVALID, 0, "%s is yes or no", name);
}

hf_status hfi_url_read_number(long *out, const char *text, long least, long most, const char *what, hf_error *err)
{
    char *end;
    errno = 0;
    *out = strtol(text, &end, 10);
    if (errno == 0 && end != text && !*end && *out >= least && *out <= most)
        return HF_OK;
    *out = least; /* callers reckon with it before they look at the status */
    /* Without the text: it may be a part of a password that should have been percent-encoded. */
    return hfi_fail(err, HF_INVALID, 0, "%s is a number from %ld to %ld", what, least, most);
}

hf_status hfi_url_read_secret(char out[HFI_URL_TEXT_MAX], const char *what, const char *path, hf_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, out, HFI_URL_TEXT_MAX - 1) : -1;
    const int failure = errno;
    if (fd >= 0)
        close(fd);
    out[length > 0 ? length : 0] = 0;
    out[strcspn(out, "\r\n")] = 0;
    return length < 0 ? hfi_fail_errno(err, failure, what, path) : HF_OK;
}

hf_status hfi_url_keep_secret(char **field, const char *what, const char *path, hf_error *err)
{
    char secret[HFI_URL_TEXT_MAX];
    hf_status status = hfi_url_read_secret(secret, what, path, err);
    if (status == HF_OK)
        status = hfi_url_keep(field, secret, err);
    explicit_bzero(secret, sizeof secret);
    return status;
}
