// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/description.hpp"

#include <gtest/gtest.h>

namespace {

using lab::parse_description;

std::string problem_of(std::string_view text) {
    const auto parsed = parse_description(text, "my.lab");
    return parsed ? "parsed" : parsed.error().text;
}

TEST(description, defaults) {
    const auto made = parse_description("", "my.lab");
    ASSERT_TRUE(made);
    ASSERT_EQ(made->gaudis.size(), 2U);
    EXPECT_EQ(made->gaudis[0].generation, lab::generation::gaudi2);
    EXPECT_EQ(made->gaudis[1].bus_id, "0000:1a:00.0");
    EXPECT_FALSE(made->gaudis[0].dmabuf_import);
}

TEST(description, sections_override_what_is_common) {
    const auto made = parse_description("# a comment\ngaudis = 3   # three\ngeneration = gaudi3\n[gaudi "
                                        "1]\ngeneration = gaudi\nmodule_id = 9\n",
                                        "my.lab");
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(made->gaudis[0].generation, lab::generation::gaudi3);
    EXPECT_EQ(made->gaudis[1].generation, lab::generation::gaudi);
    EXPECT_EQ(made->gaudis[1].module_id, 9U);
}

TEST(description, text_round_trip) {
    auto made = *parse_description("gaudis = 2\ndmabuf_import = yes\nhbm_pages = 7\npeer_to_peer = no\n"
                                   "[gaudi 1]\nsmall_bar = yes\nbroken = yes\ncs_timeout_ms = 5\n"
                                   "dmabuf_import = no\ndriver = upstream-6.6\n",
                                   "my.lab");
    EXPECT_EQ(*parse_description(made.text(), "again"), made);
}

TEST(description, drivers) {
    EXPECT_EQ(problem_of("driver = none\n"),
              "my.lab:1: driver = none: expected vendor, upstream, upstream-6.6");
    EXPECT_EQ(problem_of("driver = upstream\ngeneration = gaudi3\n"),
              "my.lab: gaudi 0: driver = upstream: upstream has no Gaudi3");
    EXPECT_EQ(problem_of("gaudis = 1\ndriver = upstream-6.6\ndmabuf_import = yes\n"),
              "my.lab: gaudi 0: driver = upstream-6.6: upstream has no import of DMA-BUFs");
}

TEST(description, nics_of_a_description) {
    const auto made =
        parse_description("gaudis = 1\nhcas = 2\nspeed_gbps = 200\n[hca 1]\nlink_layer = ethernet\n"
                          "address = 10.0.0.7\nbus_id = 0000:99:00.0\ndmabuf = no\nvendor_id = 713\n"
                          "vendor_part_id = 4123\n",
                          "my.lab");
    ASSERT_TRUE(made) << made.error().text;
    ASSERT_EQ(made->hcas.size(), 2U);
    EXPECT_EQ(made->hcas[0].link, lab::link_layer::infiniband);
    EXPECT_EQ(made->hcas[0].speed_gbps, 200U);
    EXPECT_EQ(made->hcas[1].link, lab::link_layer::ethernet);
    EXPECT_EQ(made->hcas[1].address, "10.0.0.7");
    EXPECT_FALSE(made->hcas[1].dmabuf);
    EXPECT_EQ(made->hcas[0].vendor_part_id, 1U);
    EXPECT_EQ(made->hcas[1].vendor_id, 713U);
    EXPECT_EQ(made->hcas[1].vendor_part_id, 4123U);
    EXPECT_EQ(*parse_description(made->text(), "again"), *made);
    EXPECT_EQ(parse_description("", "my.lab")->hcas.size(), 1U) << "one by default";
}

TEST(description, problems_of_nics_of_a_description) {
    EXPECT_EQ(problem_of("hcas = 17\n"),
              "my.lab:1: hcas = 17: expected a number from 0 to 16, before any section");
    EXPECT_EQ(problem_of("speed_gbps = 7\n"),
              "my.lab:1: speed_gbps = 7: expected one of 10, 25, 40, 56, 100, 200, 400, 800");
    EXPECT_EQ(problem_of("max_qp = 0\n"), "my.lab:1: max_qp = 0: expected a number from 1 to 16383");
    EXPECT_EQ(problem_of("[hca 0]\naddress = here\n"),
              "my.lab:2: address = here: expected an IPv4 address such as 10.0.0.1");
    EXPECT_EQ(problem_of("[hca 0]\nlink_layer = token-ring\n"),
              "my.lab:2: link_layer = token-ring: expected infiniband or ethernet");
    EXPECT_EQ(problem_of("[hca 0]\nvendor_part_id = 65536\n"),
              "my.lab:2: vendor_part_id = 65536: expected a number from 0 to 65535");
    EXPECT_EQ(problem_of("[hca 3]\n"), "my.lab:1: [hca 3]: this lab has only 1 (hcas = 1)");
    EXPECT_EQ(problem_of("[hca 0]\nbus_id = 0000:19:00.0\n"),
              "my.lab: hca 0 has the bus_id 0000:19:00.0 of another device");
}

TEST(description, the_ports_of_a_gaudi_are_at_its_place_and_there_once) {
    const auto parsed =
        lab::parse_description("gaudis = 2\nhcas = 2\n[gaudi 1]\nnuma_node = 1\npci_switch = 3\n"
                               "[hca 1]\nof_gaudi = 1\n",
                               "my.lab");
    ASSERT_TRUE(parsed) << parsed.error().text;
    EXPECT_EQ(parsed->name_of_hca(0), "vhca0");
    EXPECT_EQ(parsed->name_of_hca(1), "hbl_1");
    const auto& ports = parsed->hcas[1];
    EXPECT_EQ(ports.bus_id, parsed->gaudis[1].bus_id);
    EXPECT_EQ(ports.numa_node, 1U);
    EXPECT_EQ(ports.pci_switch, 3U);
    EXPECT_EQ(ports.ports, 24U);
    EXPECT_EQ(ports.vendor_id, 0x1da3U);
    EXPECT_TRUE(lab::parse_description(parsed->text(), "its text") == *parsed);
    EXPECT_EQ(problem_of("[hca 0]\nof_gaudi = 2\n"),
              "my.lab: hca 0: of_gaudi = 2: this lab has only 2 Gaudis");
    EXPECT_EQ(problem_of("[hca 0]\nof_gaudi = all\n"),
              "my.lab:2: of_gaudi = all: expected the number of a Gaudi of this lab");
    EXPECT_EQ(problem_of("hcas = 2\nof_gaudi = 0\n"),
              "my.lab: hca 1: of_gaudi = 0: another nic has the ports of that Gaudi");
    EXPECT_EQ(problem_of("ports = 3\n"),
              "my.lab: hca 0: ports = 3: expected 1 to 2; only the ports of a Gaudi (of_gaudi) may be more");
}

TEST(description, every_problem_names_line_and_expectation) {
    EXPECT_EQ(problem_of("\n\nnonsense\n"),
              "my.lab:3: 'nonsense': expected key = value, or a section [gaudi N] or [hca N]");
    EXPECT_EQ(problem_of("gaudis = many\n"),
              "my.lab:1: gaudis = many: expected a number from 0 to 64, before any section");
    EXPECT_EQ(problem_of("generation = gaudi9\n"),
              "my.lab:1: generation = gaudi9: unknown generation 'gaudi9'; expected gaudi, gaudi2 or gaudi3");
    EXPECT_EQ(problem_of("[gaudi 1]\nbus_id = 19:00\n"),
              "my.lab:2: bus_id = 19:00: expected a PCI bus id such as 0000:19:00.0");
    EXPECT_EQ(problem_of("small_bar = maybe\n"), "my.lab:1: small_bar = maybe: expected yes or no");
    EXPECT_EQ(
        problem_of("[gaudi x]\n"),
        "my.lab:1: '[gaudi x]': expected a section [gaudi N] with N from 0 to 63, or [hca N] with N from 0 "
        "to 15");
    EXPECT_EQ(problem_of("gaudis = 1\n[gaudi 4]\n"), "my.lab:2: [gaudi 4]: this lab has only 1 (gaudis = 1)");
    EXPECT_NE(problem_of("colour = red\n")
                  .find("my.lab:1: unknown key 'colour'; known keys: gaudis, hcas, address, broken, bus_id"),
              std::string::npos);
    EXPECT_EQ(problem_of("gaudis = 0\nsmall_bar = maybe\n"),
              "my.lab:2: small_bar = maybe: expected yes or no");
    EXPECT_EQ(problem_of("gaudis = 2\nmodule_id = 3\n"),
              "my.lab: gaudi 0 and gaudi 1 have the same module_id 3");
    EXPECT_EQ(problem_of("bus_id = 0000:11:00.0\n"),
              "my.lab: gaudi 0 and gaudi 1 have the same bus_id 0000:11:00.0");
}

TEST(description, the_shipped_example_parses) {
    const auto made = lab::read_description(SOURCE_FOLDER "/lab/example.lab");
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_GE(made->gaudis.size(), 2U);
}

TEST(description, a_missing_file_is_named) {
    const auto made = lab::read_description("/nonexistent/x.lab");
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().text, "/nonexistent/x.lab: cannot be read: No such file or directory");
}

} // namespace
