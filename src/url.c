/* SPDX-License-Identifier: MIT
 *
 * url.c: the little that the core needs to know of URLs.
 */
#include "core.h"
#include <ctype.h>
#include <string.h>

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
