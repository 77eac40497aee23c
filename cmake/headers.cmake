# SPDX-License-Identifier: BSD-3-Clause
# Every header compiles alone: one source for each that includes it, twice, and nothing else.
file(GLOB_RECURSE project_headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
    include/*.hpp abi/*.h src/*.hpp lab/*.hpp lab/*.h tools/*.hpp)
set(header_sources)
foreach(header ${project_headers})
    string(MAKE_C_IDENTIFIER ${header} name)
    set(source ${PROJECT_BINARY_DIR}/headers/${name}.cpp)
    file(GENERATE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
    list(APPEND header_sources ${source})
endforeach()
if(GAUDI_DIRECT_TOOLS)
    add_library(check_headers OBJECT ${header_sources})
    target_link_libraries(check_headers PRIVATE gaudi_direct_objects lab_world)
    target_compile_options(check_headers PRIVATE -O0 -g0 -Wno-unused-function)
endif()
