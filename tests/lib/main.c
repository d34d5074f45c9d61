/* SPDX-License-Identifier: MIT
 *
 * main.c: main() for test programs that need no other.
 */
#include "test.h"

int main(int argc, char **argv)
{
    return test_run(argc - 1, argv + 1, NULL);
}
