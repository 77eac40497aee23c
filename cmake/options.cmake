# SPDX-License-Identifier: BSD-3-Clause
option(GAUDI_DIRECT_TOOLS "build the command-line tools" ON)
option(GAUDI_DIRECT_TESTS "build the tests" ON)
option(GAUDI_DIRECT_UCX "build the UCX plugin, and test with the UCX under .deps/ucx (make ucx)" ON)
set(GAUDI_DIRECT_UCX_HEADERS ${PROJECT_SOURCE_DIR}/.deps/ucx/1.22.0/include CACHE PATH "where ucp/, uct/ and ucs/ are")
if(GAUDI_DIRECT_UCX AND NOT EXISTS ${GAUDI_DIRECT_UCX_HEADERS}/uct/api/uct.h)
    message(WARNING "no UCX headers under ${GAUDI_DIRECT_UCX_HEADERS}: the plugin is not built; make ucx fetches them")
    set(GAUDI_DIRECT_UCX OFF)
endif()
option(GAUDI_DIRECT_BENCH "build the benchmarks" OFF)
option(GAUDI_DIRECT_WERROR "treat warnings as errors" ON)
set(GAUDI_DIRECT_SANITIZE "" CACHE STRING "sanitizers, as for -fsanitize=")

# Line numbers are enough for a backtrace, and build much faster than full debug information. What the sanitizers instrument
# is hard work for the optimizer: without it the address sanitizer's build takes half the time and its tests hardly longer.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
if(GAUDI_DIRECT_SANITIZE MATCHES "address")
    set(CMAKE_CXX_FLAGS_SANITIZE "-O0 -g1")
else()
    set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1")
endif()

add_library(project_options INTERFACE)
target_compile_features(project_options INTERFACE cxx_std_20)
target_include_directories(project_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(project_options INTERFACE _GNU_SOURCE)
if(NOT GAUDI_DIRECT_SANITIZE)
    target_compile_options(project_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
        -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual
        $<$<BOOL:${GAUDI_DIRECT_WERROR}>:-Werror>)
else() # these builds join sources, and what that makes the compiler say is nobody's fault
    # Undefined behaviour ends the program: a report alone would let the test pass. The check of vptr knows the types of one
    # libstdc++ only, and the virtual libraries carry their own; it also takes an object for invalid where no descriptor is left.
    set(sanitize -fsanitize=${GAUDI_DIRECT_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all)
    target_compile_options(project_options INTERFACE -w ${sanitize} -fno-omit-frame-pointer)
    target_link_options(project_options INTERFACE ${sanitize})
endif()

# Headers such as gtest's, CLI11's and nlohmann's take longer than what is ours in a source: tests, tools and the lab are compiled
# several sources at a time, but for the debugger's build, where one of them is compiled again and again, and by clang, which
# looks whether each of them includes what it needs.
macro(join_sources)
    if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        set(CMAKE_UNITY_BUILD ON)
        set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
    endif()
endmacro()
