/* SPDX-License-Identifier: MIT
 *
 * open_default.c: opens the default store and prints its URL, or why not. test_environment.c makes it a set-user-ID
 * program.
 */
#include <holdfast.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    hf_client *client = NULL;
    hf_error err;
    const hf_status status = hf_open(&client, NULL, NULL, &err);
    printf("%s\n", status == HF_OK ? hf_url(client) : err.message);
    hf_close(client);
    fflush(stdout);
    _exit(0); /* a sanitizer that looks for leaks when a program ends may not look at a set-user-ID one */
}
