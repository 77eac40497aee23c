# SPDX-License-Identifier: BSD-3-Clause
# Run after a test program was linked: writes the file that tells ctest its tests, one a line of gtest's list.
#   cmake -DPROGRAM=... -DFILTER=... -DLABELS=... -DNAME=... -DFILE=... -P discover.cmake
execute_process(COMMAND ${PROGRAM} --gtest_list_tests --gtest_filter=${FILTER} OUTPUT_VARIABLE listed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: ${status}")
endif()
set(script "")
string(REPLACE ";" "" listed "${listed}")
string(REPLACE "\n" ";" listed "${listed}")
foreach(line IN LISTS listed)
    string(REGEX REPLACE " *#.*" "" line "${line}") # what a parameter looks like
    if(line MATCHES "^  +(.+)$")
        set(test "${suite}${CMAKE_MATCH_1}")
        if(NOT test MATCHES "DISABLED_")
            string(APPEND script "add_test([==[${NAME}.${test}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${test}]==])\n"
                "set_tests_properties([==[${NAME}.${test}]==] PROPERTIES LABELS [==[${LABELS}]==] TIMEOUT 300 SKIP_REGULAR_EXPRESSION [==[\\[  SKIPPED \\]]==])\n")
        endif()
    elseif(line MATCHES "^[^ ]+\\.$")
        set(suite "${line}")
    endif()
endforeach()
file(WRITE ${FILE} "${script}")
