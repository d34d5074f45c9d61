/* SPDX-License-Identifier: MIT
 *
 * one_file.c: what only the command in one file has.
 */
extern const char hfi_why_not_in_one_file[];
const char hfi_why_not_in_one_file[] =
    "this is the command in one file, into which its client library cannot be linked";
