#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs into a scratch folder and builds a ten-line program against it, with CMake and with pkg-config.
# Arguments: build folder, source folder.
set -eu
build=$1 source=$2
scratch=$(mktemp -d)
lab=$(mktemp -d -p /dev/shm gaudi-test-XXXXXX)
trap 'rm -rf "$scratch" "$lab"' EXIT
fail() {
    echo "install_test: $*" >&2
    exit 1
}

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
for file in bin/gaudi-direct bin/rdma_server bin/rdma_client share/man/man1/rdma_client.1 share/man/man1/rdma_server.1 include/gaudi/gaudi.hpp lib/libgaudi-direct.so lib/gaudi-direct/lab/libhl-thunk.so \
    lib/gaudi-direct/lab/libvhca.so lib/gaudi-direct/lab/libvhca-node.so share/doc/gaudi-direct/docs/virtual-hca.md \
    lib/cmake/gaudi-direct/gaudi-direct-config.cmake lib/pkgconfig/gaudi-direct.pc share/man/man1/gaudi-direct.1 share/man/man1/gaudi-direct-selftest.1 lib/gaudi-direct/selftest/contract_tests share/doc/gaudi-direct/docs/hardware.md include/gaudi/gaudi.h \
    share/gaudi-direct/example.lab include/gaudi-direct/lab/dmabuf.h; do
    [ -e "$scratch/prefix/$file" ] || fail "not installed: $file"
done

# A page that only names another is looked for in the machine's own folders, where librdmacm's has the same name.
for page in "$scratch"/prefix/share/man/man*/*; do
    ! grep -q '^\.so' "$page" || fail "$page only names another"
done

mkdir "$scratch/user"
cp "$source/examples/ten_lines.cpp" "$scratch/user/main.cpp"
cat >"$scratch/user/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(user CXX)
find_package(gaudi-direct 0.1 REQUIRED)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE gaudi-direct::gaudi-direct)
CMAKE
cmake -G Ninja -S "$scratch/user" -B "$scratch/user/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/user/build" >/dev/null

export PKG_CONFIG_PATH="$scratch/prefix/lib/pkgconfig" GAUDI_LAB_ROOT="$lab"
# shellcheck disable=SC2046
g++ -std=c++20 "$scratch/user/main.cpp" $(pkg-config --cflags --libs gaudi-direct) -Wl,-rpath,"$scratch/prefix/lib" -o "$scratch/user/by_pkg_config"

# README's own lines, with every warning an error; and an older standard, which is named.
sed -n '/^```c++$/,/^```$/p' "$source/README.md" | grep -v '```' >"$scratch/user/lines"
grep -q open_nic "$scratch/user/lines" || fail "README has no lines of C++"
{
    echo '#include <gaudi/gaudi.hpp>'
    echo 'using gaudi::expect;'
    echo 'void lines() {'
    sed -n '1,/^auto handle/p' "$scratch/user/lines" | grep -v '^auto handle'
    echo '(void)nic; }'
} >"$scratch/user/lines.cpp"
# shellcheck disable=SC2046
g++ -std=c++20 -Wall -Wextra -Wpedantic -Werror -c "$scratch/user/lines.cpp" $(pkg-config --cflags gaudi-direct) -o "$scratch/user/lines.o" ||
    fail "README's lines do not compile without warnings"
# shellcheck disable=SC2046
! g++ -std=c++17 -c "$scratch/user/lines.cpp" $(pkg-config --cflags gaudi-direct) -o "$scratch/user/lines.o" 2>"$scratch/user/refused" ||
    fail "C++17 is accepted"
grep -q 'gaudi-direct needs C++20: compile with -std=c++20' "$scratch/user/refused" || fail "C++17 is not named: $(head -n 5 "$scratch/user/refused")"

# shellcheck disable=SC2046
gcc -Wall -Werror "$source/examples/register_memory.c" $(pkg-config --cflags --libs gaudi-direct) -libverbs -Wl,-rpath,"$scratch/prefix/lib" -o "$scratch/user/in_c"
"$scratch/prefix/bin/gaudi-direct" lab run -- "$scratch/user/in_c" | grep -q "rkey 0x" || fail "the C example does not run"

for program in "$scratch/user/build/user" "$scratch/user/by_pkg_config"; do
    output=$(timeout 60 "$scratch/prefix/bin/gaudi-direct" lab run -- "$program") || fail "$program failed: $output"
    case "$output" in
    *"data right"*) ;;
    *) fail "unexpected: $output" ;;
    esac
done
"$scratch/prefix/bin/gaudi-direct" lab run -- ibv_devices | grep -q vhca0 || fail "the installed lab has no NIC"
"$scratch/prefix/bin/gaudi-direct" lab clean
"$scratch/prefix/bin/rdma_client" localhost:1 --quiet 2>&1 | grep -q "no program listens there" || fail "the installed rdma_client does not run"
if [ -e "$build/lib/ucx/libuct_gaudi.so" ]; then # the plugin, under the three names that UCX may look for
    for module in ucs_gaudi uct_gaudi ucx_perftest_gaudi; do
        for extension in so so.0 so.0.0.0; do
            [ -e "$scratch/prefix/lib/ucx/lib$module.$extension" ] || fail "not installed: lib$module.$extension"
        done
    done
    for version in 1.22.0 1.23.0; do
        "$scratch/prefix/bin/gaudi-direct" lab run --ucx "$source/.deps/ucx/$version" -- env UCX_MEM_MMAP_HOOK_MODE=reloc ucx_info -d |
            grep -q "Memory domain: gaudi_copy" || fail "the installed plugin does not work under UCX $version"
    done
fi
"$scratch/prefix/bin/gaudi-direct" lab clean
echo "installed tree works"
