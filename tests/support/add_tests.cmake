# SPDX-License-Identifier: BSD-3-Clause
# add_tests(program label...): the tests of a program, with these labels and those next to them in its sources.
#
#   critical, dmabuf, detection, ucm, verification   what the original documents call these tests
#   gaudi, hca, judges, rdma, copies, ucx, ipc       what they are about
#   slow       not under the sanitizers              waits      mostly wait: several run at a time
#   no_tsan    not under the thread sanitizer        full       only in make test-full
#   tools      run the tools, also under every sanitizer in make test-full
function(add_tests program)
    get_target_property(sources ${program} SOURCES)
    list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
    list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set(options)
    if(GAUDI_DIRECT_SANITIZE)
        list(APPEND options --together)
        if(program MATCHES "^(ipc|rdma)_tests$") # take longest, so they begin first
            list(APPEND options --cost 100)
        endif()
    endif()
    string(REPLACE ";" " " labels "${ARGN}")
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${program}_list.cmake)
    set(script ${PROJECT_SOURCE_DIR}/tests/support/discover.py)
    add_custom_command(TARGET ${program} POST_BUILD VERBATIM COMMAND python3 ${script} --program $<TARGET_FILE:${program}>
        --name ${program} --file ${file} --labels "${labels}" ${options} ${sources})
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# add_long_run(name program filter labels variable=value): a campaign with other numbers, of make test-full.
function(add_long_run name program filter labels environment)
    add_test(NAME ${program}.${name} COMMAND ${program} --gtest_filter=${filter})
    set_tests_properties(${program}.${name} PROPERTIES LABELS "${labels};full" ENVIRONMENT ${environment} TIMEOUT 900)
endfunction()
