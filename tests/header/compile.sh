#!/bin/sh
# SPDX-License-Identifier: MIT
#
# compile.sh: compiles the public header by itself, then a program that uses all of it, with no warning allowed.
#
#     compile.sh INCLUDE-DIR SOURCE COMPILER FLAG...
set -eu
include=$1
source=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $1 in
*++) language=c++ ;;
*) language=c ;;
esac
flags="-Wall -Wextra -Wpedantic -Wshadow -Wcast-qual -Wundef -Werror -I$include"

# Twice, so that the include guard is tested too; alone, so that it is seen to bring what it needs.
printf '#include <holdfast.h>\n#include <holdfast.h>\nint main(void) { return HF_OK; }\n' >"$work/alone.c"
# shellcheck disable=SC2086 # the flags are words
"$@" $flags -x "$language" -c "$work/alone.c" -o "$work/alone.o"
# shellcheck disable=SC2086
"$@" $flags -x "$language" -c "$source" -o "$work/use.o"

# A function that the program does not use is a function whose declaration is not tested.
for name in $(sed -n 's/^HF_API .*\b\(hf_[a-z_]*\)(.*/\1/p' "$include/holdfast.h"); do
    if ! grep -q "\b$name(" "$source"; then
        echo "$source does not use $name()" >&2
        exit 1
    fi
done
