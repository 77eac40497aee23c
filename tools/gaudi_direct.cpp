// SPDX-License-Identifier: BSD-3-Clause
// The command line: options, their help, and the command that each calls.
#include "tools/arguments.hpp"
#include "tools/commands.hpp"
#include "tools/self.hpp"

#include <gaudi/version.hpp>

#include <CLI/CLI.hpp>

namespace {

constexpr const char* json_help = "Machine-readable output";

struct chosen {
    tools::info_options info;
    tools::doctor_options doctor;
    tools::selftest_options selftest;
    tools::measure_options measure;
    tools::lab_run_options run;
    std::string name = tools::default_lab();
    std::string port, link;
    bool as_json = false;
    int outcome = tools::ok;
};

void add_info(CLI::App& program, chosen& options) {
    auto* command = program.add_subcommand(
        "info", "Show the devices, what the driver reports, and which processes have them open");
    command->add_flag("--json", options.info.as_json, json_help);
    command->add_flag("--no-lab", options.info.no_lab, "Do not go to the lab when there is no hardware");
    command->add_flag("--no-probe", options.info.no_probe,
                      "Do not open free devices to check DMA-BUF export");
    command
        ->add_option(
            "--paths", options.info.places,
            "FROM TO: every path for bytes between two places (host, or a device's index, PCI bus id or "
            "module:<id>), viable or the reason why not")
        ->expected(2);
    command->callback([&options] { options.outcome = tools::info(options.info); });
}

void add_topo(CLI::App& program, chosen& options) {
    auto* command =
        program.add_subcommand("topo", "Which NIC is how far from which Gaudi, and which one is taken");
    command->add_flag("--json", options.as_json, json_help);
    command->callback([&options] { options.outcome = tools::topo(options.as_json); });
}

void add_doctor(CLI::App& program, chosen& options) {
    auto* command = program.add_subcommand(
        "doctor", "Check this machine from the kernel to a real transfer, and say what to do");
    command->add_flag("-v,--verbose", options.doctor.verbose, "Print what is good as well");
    auto* env = command->add_flag("--env", options.doctor.as_environment,
                                  "The environment for UCX and what runs on it, as lines for a shell");
    command->add_flag("--json", options.doctor.as_json, json_help)->excludes(env);
    command->add_flag("--no-probe", options.doctor.no_probe, "Open no device and no NIC for a transfer");
    command->add_option("--timeout", options.doctor.seconds, "Seconds that one check may take")
        ->capture_default_str()
        ->check(CLI::Range(1U, 3600U));
    auto* serves = command->add_flag("--serve", options.doctor.serves,
                                     "Answer the doctor of another server, once (see --peer)");
    command->add_option("--port", options.doctor.port, "Where --serve listens")->capture_default_str();
    command
        ->add_option("--peer", options.doctor.peer,
                     "HOST or HOST:PORT where doctor --serve runs: also check that the two reach each other")
        ->excludes(serves)
        ->excludes(env);
    command->callback([&options] { options.outcome = tools::run_doctor(options.doctor); });
}

void add_selftest(CLI::App& program, chosen& options) {
    auto* command = program.add_subcommand(
        "selftest", "Run the library's own tests on this machine's free devices, and write a report");
    command->add_option("--report", options.selftest.report, "The report, as JSON")->capture_default_str();
    command
        ->add_option("--filter", options.selftest.filter, "Only tests of these names, such as 'any_device.*'")
        ->capture_default_str();
    command->add_flag("-v,--verbose", options.selftest.verbose, "Print the tests that pass as well");
    command->callback([&options] { options.outcome = tools::run_selftest(options.selftest); });
}

void add_measure(CLI::App& program, chosen& options) {
    auto* command = program.add_subcommand(
        "measure", "Measure a device's copies on this machine and print settings for UCX (takes a second)");
    command->add_option("--device", options.measure.device,
                        "Index, PCI bus id or module:<id>; without it the first free one");
    auto* env = command->add_flag("--env", options.measure.as_environment,
                                  "The settings of UCX, as lines for a shell");
    command->add_flag("--json", options.measure.as_json, json_help)->excludes(env);
    command->callback([&options] { options.outcome = tools::measure(options.measure); });
}

void add_lab(CLI::App& program, chosen& options) {
    auto* lab =
        program.add_subcommand("lab", "The lab: virtual Gaudis and RDMA NICs on a machine without any");
    lab->require_subcommand(1);

    options.run.name = options.name;
    auto* run = lab->add_subcommand("run", "Run any program in the lab; its exit status is passed on");
    run->add_option("--lab", options.run.name, "Name of the lab; made at its first use")
        ->capture_default_str();
    run->add_option("--gaudis", options.run.gaudis,
                    "How many Gaudis (2 in a new lab; an existing one is taken as it is without this)");
    run->add_option("--hcas", options.run.hcas, "How many RDMA NICs (1 in a new lab)");
    run->add_option("--generation", options.run.generation, "gaudi, gaudi2 or gaudi3 (gaudi2 in a new lab)");
    run->add_option("--config", options.run.config, "Lab description; see gaudi-lab-description(5)");
    run->add_option("--faults", options.run.faults, "Fault script; see gaudi-lab-faults(5)");
    run->add_option("--ucx", options.run.ucx,
                    "Run with the UCX under this prefix: its bin and lib come first");
    run->add_flag("--synapse", options.run.synapse,
                  "The program finds a virtual libSynapse.so and libscal.so");
    run->add_option("command", options.run.command, "The program and its arguments, after --")->required();
    run->positionals_at_end();
    run->callback([&options] { options.outcome = tools::lab_run(options.run); });

    auto* list = lab->add_subcommand("list", "The labs of this user");
    list->add_flag("--json", options.as_json, json_help);
    list->callback([&options] { options.outcome = tools::lab_list(options.as_json); });

    auto* show = lab->add_subcommand("show", "One lab: its Gaudis and NICs, who uses them, what they store");
    show->add_option("name", options.name, "Which lab")->capture_default_str();
    show->add_flag("--json", options.as_json, json_help);
    show->callback([&options] { options.outcome = tools::lab_show(options.name, options.as_json); });

    auto* port =
        lab->add_subcommand("port", "Pull a NIC's cable, or plug it in again, under running programs");
    port->add_option("port", options.port, "vhcaN, or vhcaN/P for one of two ports")->required();
    port->add_option("link", options.link, "up or down")->required()->check(CLI::IsMember({"up", "down"}));
    port->add_option("--lab", options.name, "Which lab")->capture_default_str();
    port->callback(
        [&options] { options.outcome = tools::lab_port(options.name, options.port, options.link == "up"); });

    auto* clean = lab->add_subcommand("clean", "Remove a lab that no process uses");
    clean->add_option("name", options.name, "Which lab")->capture_default_str();
    clean->callback([&options] { options.outcome = tools::lab_clean(options.name); });
}

// The parser would only report that a command is missing.
bool known_command(int argc, char** argv, int at, std::initializer_list<std::string_view> commands) {
    if (argc <= at || argv[at][0] == '-')
        return true;
    std::string names;
    for (const auto name : commands) {
        if (name == argv[at])
            return true;
        names += (names.empty() ? "" : ", ") + std::string(name);
    }
    std::cerr << "gaudi-direct: unknown command '" << argv[at] << "'; there are: " << names << '\n';
    return false;
}

} // namespace

int main(int argc, char** argv) {
    CLI::App program{"Zero-copy data movement for Intel Gaudi memory", "gaudi-direct"};
    program.set_version_flag("--version", std::string(gaudi::version()));
    program.require_subcommand(1);
    chosen options;
    add_info(program, options);
    add_topo(program, options);
    add_doctor(program, options);
    add_selftest(program, options);
    add_measure(program, options);
    add_lab(program, options);
    if (!known_command(argc, argv, 1, {"info", "topo", "doctor", "selftest", "measure", "lab"}) ||
        (argc > 1 && std::string_view(argv[1]) == "lab" &&
         !known_command(argc, argv, 2, {"run", "list", "show", "port", "clean"})))
        return tools::usage;
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return tools::report_error(program, error, tools::usage);
    } catch (const std::exception& error) {
        std::cerr << "gaudi-direct: " << error.what() << '\n';
        return tools::failed;
    }
    return options.outcome;
}
