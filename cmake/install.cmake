# SPDX-License-Identifier: BSD-3-Clause
include(CMakePackageConfigHelpers)
# Tools look for the lab in ../lib: the layout is the same for every prefix.
set(CMAKE_INSTALL_LIBDIR lib)

install(TARGETS gaudi-direct EXPORT gaudi-direct-targets LIBRARY DESTINATION lib)
if(GAUDI_DIRECT_UCX) # each module under three names: UCX takes the one with its own extension
    install(DIRECTORY $<TARGET_FILE_DIR:uct_gaudi>/ DESTINATION lib/ucx USE_SOURCE_PERMISSIONS)
endif()
install(TARGETS hl-thunk vhca vhca-node LIBRARY DESTINATION lib/gaudi-direct/lab)
install(TARGETS scal Synapse LIBRARY DESTINATION lib/gaudi-direct/lab/synapse)
if(GAUDI_DIRECT_TOOLS)
    install(TARGETS gaudi-direct-tool rdma_server rdma_client RUNTIME DESTINATION bin)
endif()
if(GAUDI_DIRECT_TESTS) # `make install` builds them, the target that all else needs does not
    install(TARGETS contract_tests RUNTIME DESTINATION lib/gaudi-direct/selftest OPTIONAL)
    if(GAUDI_DIRECT_UCX AND GAUDI_DIRECT_TOOLS)
        install(TARGETS ucp_peers RUNTIME DESTINATION lib/gaudi-direct/selftest OPTIONAL)
    endif()
endif()
install(DIRECTORY include/gaudi DESTINATION include)
install(FILES lab/dmabuf.h DESTINATION include/gaudi-direct/lab)
install(FILES lab/example.lab DESTINATION share/gaudi-direct)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION share/doc/gaudi-direct)
install(FILES docs/README.md docs/architecture.md docs/glossary.md docs/copies.md docs/gotchas.md docs/dmabuf-export.md docs/errors.md docs/virtual-hca.md docs/virtual-synapse.md docs/rdma.md docs/ucx.md docs/ipc.md docs/security.md docs/hardware.md DESTINATION share/doc/gaudi-direct/docs)
install(DIRECTORY docs/pictures DESTINATION share/doc/gaudi-direct/docs FILES_MATCHING PATTERN "*.svg")
install(FILES man/gaudi-direct.1 man/gaudi-direct-info.1 man/gaudi-direct-doctor.1 man/gaudi-direct-selftest.1 man/gaudi-direct-measure.1 man/gaudi-direct-lab.1 man/rdma_client.1 man/rdma_server.1 DESTINATION share/man/man1)
install(FILES man/gaudi-direct-ipc.7 man/gaudi-direct-ucx.7 DESTINATION share/man/man7)
install(FILES man/gaudi-lab-description.5 man/gaudi-lab-faults.5 DESTINATION share/man/man5)

install(EXPORT gaudi-direct-targets NAMESPACE gaudi-direct:: DESTINATION lib/cmake/gaudi-direct)
configure_package_config_file(cmake/gaudi-direct-config.cmake.in gaudi-direct-config.cmake INSTALL_DESTINATION lib/cmake/gaudi-direct)
write_basic_package_version_file(gaudi-direct-config-version.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/gaudi-direct.pc.in gaudi-direct.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gaudi-direct-config.cmake ${PROJECT_BINARY_DIR}/gaudi-direct-config-version.cmake
    DESTINATION lib/cmake/gaudi-direct)
install(FILES ${PROJECT_BINARY_DIR}/gaudi-direct.pc DESTINATION lib/pkgconfig)
