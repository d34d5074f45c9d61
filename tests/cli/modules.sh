# SPDX-License-Identifier: MIT
# Where engines are looked for: beside the library, wherever that lies, unless others could have put them there.
. "$HERE/lib.sh"
unset HOLDFAST_MODULES LD_LIBRARY_PATH # which Meson sets
built=$(dirname "$(dirname "$HOLDFAST")")
modules=
for module in "$built"/src/*.so; do
    name=$(basename "$module" .so)
    [ "$name" = libholdfast ] || modules="$modules $name"
done
[ -n "$modules" ] || fail "no engine was built as a module"
first=${modules# }
first=${first%% *}

# present NAME COMMAND: it has that engine. ignores COMMAND: it does not look at the engine in $TMP/moved. There may be
# another one where the library was built for.
present()
{
    wanted=$1
    shift
    expect 0 "$@" engines --json
    grep "\"name\": \"$wanted\"" "$TMP/out" | grep -q '"present": true' || fail "$wanted is not present"
}
ignores()
{
    expect 0 "$@" engines
    ! grep -F "$TMP" "$TMP/out" || fail "the engine was looked at"
}

# As built, with nothing in the environment.
for name in $modules; do
    present "$name" "$HOLDFAST"
done

# One that is not installed: which package has it, as it is packed, and what it is built with. Then where it would be.
mkdir nothing
source=$HERE/../..
for name in $modules; do
    family=$(basename "$(grep -lx "usr/lib/\*/holdfast/$name.so" "$source"/debian/*.install)" .install)
    grep -qx "Package: $family" "$source/debian/control" || fail "$name is in no package"
    grep -q "^option('${family#holdfast-}', type: 'feature'" "$source/meson_options.txt" || fail "no option for $name"
    cure="install the package $family, or build with -D${family#holdfast-}=enabled (there is no $TMP/nothing/$name.so)"
    expect 69 env HOLDFAST_MODULES="$TMP/nothing" "$HOLDFAST" -u "$name://localhost" run -n job -- true
    said "the $name engine is not here: $cure"
    expect 0 env HOLDFAST_MODULES="$TMP/nothing" "$HOLDFAST" engines
    printed "  not present: $cure"
done

# Elsewhere, laid out as it is when installed, and somewhere else again.
mkdir -p tree/cli tree/src/holdfast
cp "$HOLDFAST" tree/cli/
cp "$built/src/libholdfast.so.0" tree/src/
cp "$built/src/$first.so" tree/src/holdfast/
present "$first" tree/cli/holdfast
mv tree moved
present "$first" moved/cli/holdfast

# By a symbolic link to the library.
mkdir -p linked/cli linked/src
cp "$HOLDFAST" linked/cli/
ln -s "$TMP/moved/src/libholdfast.so.0" linked/src/
present "$first" linked/cli/holdfast

# Not from a directory whose name depends on where the program stands. What is no engine shows who looks at it.
echo nonsense >"moved/src/holdfast/$first.so"
expect 0 moved/cli/holdfast engines
printed "$TMP/moved/src/holdfast/$first.so"
cd moved
ignores env LD_LIBRARY_PATH=src cli/holdfast
cd ..

# Not from one in which others can put files, nor from one of somebody else.
chmod 777 moved/src/holdfast
ignores moved/cli/holdfast
chmod 755 moved/src/holdfast
if [ "$(id -u)" -eq 0 ]; then
    chown 54321 moved/src/holdfast
    ignores moved/cli/holdfast
    # With more rights than its caller a program looks only where the library was built for. Only root can make one.
    "$LOADED" | grep -q "$built/src/.*$first.so" || fail "$first was not loaded"
    cp "$LOADED" privileged
    chgrp 54321 privileged
    chmod 2755 privileged
    ./privileged >out
    grep -q "$built/src/libholdfast.so" out || fail "the program cannot be run with more rights"
    ! grep -q "$built/src/.*$first.so" out || fail "a program with more rights looks beside the library"
else
    not_run "engines of other users, and programs with more rights than their caller: it needs root"
fi
