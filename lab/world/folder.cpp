// SPDX-License-Identifier: BSD-3-Clause
#include "lab/world/folder.hpp"

#include "lab/world/machine.hpp"
#include "lab/world/ports.hpp"
#include "lab/world/text.hpp"
#include "lab/world/topology.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <thread>
#include <unistd.h>

namespace lab {
namespace {

namespace fs = std::filesystem;

tl::unexpected<problem> failed(std::string_view what, const fs::path& path) {
    return tl::unexpected(problem{fmt::format("{} {}: {}", what, path.string(), std::strerror(errno))});
}

// A folder that only this user can enter. Any other folder of that name could be a trap: the state of a lab
// is trusted.
result<void> make_private_folder(const fs::path& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        return failed("cannot make the folder", path);
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0)
        return failed("cannot inspect", path);
    if (!S_ISDIR(status.st_mode))
        return tl::unexpected(
            problem{fmt::format("{} is not a folder; remove it or set GAUDI_LAB_ROOT", path.string())});
    if (status.st_uid != ::geteuid())
        return tl::unexpected(
            problem{fmt::format("{} belongs to uid {}, not to you (uid {}); remove it or set GAUDI_LAB_ROOT",
                                path.string(), status.st_uid, ::geteuid())});
    if ((status.st_mode & 077) != 0)
        return tl::unexpected(
            problem{fmt::format("{} has mode {:04o}, others can enter it; run chmod 0700 on it",
                                path.string(), status.st_mode & 07777)});
    return {};
}

result<void> make_file(const fs::path& path, std::string_view text = {}) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return failed("cannot make", path);
    const auto written = ::write(fd, text.data(), text.size());
    const bool whole = written == static_cast<ssize_t>(text.size());
    if (!whole && written >= 0)
        errno = ENOSPC;
    auto outcome = whole ? result<void>{} : result<void>(failed("cannot write", path));
    ::close(fd);
    return outcome;
}

// Creates the file completely or not at all.
result<void> make_file_at_once(const fs::path& path, std::string_view text) {
    auto unfinished = path;
    unfinished += ".new";
    if (auto status = make_file(unfinished, text); !status)
        return status;
    if (::rename(unfinished.c_str(), path.c_str()) != 0)
        return failed("cannot write", path);
    return {};
}

result<void> make_ports(const fs::path& lab, const description& wanted) {
    return make_file_at_once(port_states::file_of(lab), port_states::text_of(wanted));
}

// What programs read about the machine.
result<void> make_machine(const fs::path& path, const description& wanted) {
    for (const auto& [name, text, is_link] : machine_files(wanted)) {
        const auto file = path / name;
        fs::create_directories(file.parent_path());
        if (is_link)
            fs::create_symlink(text, file);
        else if (auto status = make_file(file, text); !status)
            return status;
    }
    return {};
}

result<void> make_contents(const fs::path& path, const description& wanted) try {
    for (const auto& entry : fs::directory_iterator(path))
        if (entry.path().filename() != "lock")
            fs::remove_all(entry.path());
    if (auto status = make_private_folder(path / "accel"); !status)
        return status;
    for (unsigned i = 0; i < wanted.gaudis.size(); ++i) {
        const auto device = path / fmt::format("gaudi{}", i);
        if (auto status = make_private_folder(device); !status)
            return status;
        if (auto status = make_private_folder(device / "exports"); !status)
            return status;
        for (const auto& node : {fmt::format("accel{}", i), fmt::format("accel_controlD{}", i)})
            if (auto status = make_file(path / "accel" / node); !status)
                return status;
    }
    if (auto status = make_private_folder(path / "hca"); !status)
        return status;
    if (auto status = make_machine(path, wanted); !status)
        return status;
    if (auto status = make_ports(path, wanted); !status)
        return status;
    if (auto status = make_file(path / "topology.xml", topology_xml(wanted)); !status)
        return status;
    // Written last: a lab without a description is unfinished and is made again.
    return make_file_at_once(path / "description", wanted.text());
} catch (const fs::filesystem_error& error) {
    return tl::unexpected(problem{error.what()});
}

void remove_lab(const fs::path& path) {
    fs::remove_all(path);
    ::rmdir(path.parent_path().c_str()); // removes the root only with the last lab; "not empty" is no error
}

bool same_file(int fd, const fs::path& path) {
    struct stat by_fd {
    }, by_path{};
    return ::fstat(fd, &by_fd) == 0 && ::stat(path.c_str(), &by_path) == 0 &&
           by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev;
}

int lock(int fd, int how) {
    int rc;
    do
        rc = ::flock(fd, how);
    while (rc != 0 && errno == EINTR);
    return rc;
}

// The caller holds the exclusive lock. Makes or remakes the contents where needed.
result<void> settle_contents(const fs::path& path, const std::optional<description>& wanted) {
    if (fs::exists(path / "description")) {
        const auto present = read_description(path / "description");
        if (!wanted || (present && *present == *wanted)) // a lab of an older version has no ports file
            return !present || fs::exists(port_states::file_of(path)) ? result<void>{}
                                                                      : make_ports(path, *present);
    }
    return make_contents(path, wanted.value_or(make_description(2, generation::gaudi2)));
}

} // namespace

folder::folder(folder&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)),
      contents_(std::move(other.contents_)) {}

folder& folder::operator=(folder&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(lock_fd_, other.lock_fd_);
    std::swap(contents_, other.contents_);
    return *this;
}

folder::~folder() {
    if (lock_fd_ >= 0)
        ::close(lock_fd_);
}

result<folder> folder::enter(std::string_view name, const std::optional<description>& wanted) try {
    if (auto valid = check_name(name); !valid)
        return tl::unexpected(valid.error());
    const auto top = root();
    if (!top)
        return tl::unexpected(top.error());
    const auto path = *top / name;
    for (int tries = 0;; ++tries) {
        if (tries > 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (auto status = make_private_folder(path); !status)
            return tl::unexpected(status.error());
        const auto lock_path = path / "lock";
        const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 && errno == ENOENT) // another process cleaned the lab in between
            continue;
        if (fd < 0) {
            auto refused = failed("cannot open", lock_path);
            ::rmdir(path.c_str()); // fails if it is in use
            return refused;
        }
        folder entered(path, fd, {});
        const bool alone = lock(fd, LOCK_EX | LOCK_NB) == 0;
        if (alone && same_file(fd, lock_path))
            if (auto settled = settle_contents(path, wanted); !settled) {
                if (!fs::exists(path / "description")) // unfinished
                    remove_lab(path);
                return tl::unexpected(settled.error());
            }
        if (lock(fd, LOCK_SH) != 0)
            return failed("cannot lock", lock_path);
        if (!same_file(fd, lock_path) || !fs::exists(path / "description"))
            continue;
        auto contents = read_description(path / "description");
        if (!contents)
            return tl::unexpected(contents.error());
        // `lab list` and `lab show` hold a lab for a moment only.
        if (wanted && *contents != *wanted && tries < 20)
            continue;
        if (wanted && *contents != *wanted)
            return tl::unexpected(problem{fmt::format("lab '{}' is in use with another description; leave "
                                                      "the description out to share it, wait until it is "
                                                      "idle, or choose another lab with --lab NAME",
                                                      name)});
        entered.contents_ = std::move(*contents);
        return entered;
    }
} catch (const fs::filesystem_error& error) {
    return tl::unexpected(problem{error.what()});
}

fs::path folder::device_node(unsigned index) const {
    return path_ / "accel" / fmt::format("accel{}", index);
}

fs::path folder::control_node(unsigned index) const {
    return path_ / "accel" / fmt::format("accel_controlD{}", index);
}

fs::path folder::device_folder(unsigned index) const {
    return path_ / fmt::format("gaudi{}", index);
}

result<fs::path> root() {
    const char* chosen = std::getenv("GAUDI_LAB_ROOT");
    const fs::path path = chosen != nullptr && *chosen != '\0'
                              ? fs::path(chosen)
                              : fs::path(fmt::format("/dev/shm/gaudi-lab-{}", ::geteuid()));
    if (auto status = make_private_folder(path); !status)
        return tl::unexpected(status.error());
    struct statfs system {};
    if (::statfs(path.c_str(), &system) == 0 && system.f_type != TMPFS_MAGIC)
        return tl::unexpected(
            problem{fmt::format("{} is not on tmpfs, and other file systems do not hold files as large as a "
                                "device; choose a folder under /dev/shm",
                                path.string())});
    return path;
}

std::string selected_name() {
    const char* chosen = std::getenv("GAUDI_LAB");
    return chosen != nullptr && *chosen != '\0' ? chosen : "default";
}

result<void> check_name(std::string_view name) {
    constexpr std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (name.empty() || name.size() > 64 || name.front() == '.' ||
        name.find_first_not_of(allowed) != name.npos)
        return tl::unexpected(problem{fmt::format(
            "'{}' is no lab name: 1 to 64 letters, digits, '-', '_' or '.', not beginning with a dot",
            name)});
    return {};
}

result<std::vector<std::string>> list() try {
    const auto top = root();
    if (!top)
        return tl::unexpected(top.error());
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(*top))
        if (fs::exists(entry.path() / "description"))
            names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
} catch (const fs::filesystem_error& error) {
    return tl::unexpected(problem{error.what()});
}

bool in_use(const fs::path& lab) {
    const int fd = ::open((lab / "lock").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool busy = lock(fd, LOCK_EX | LOCK_NB) != 0;
    ::close(fd);
    return busy;
}

result<void> clean(std::string_view name) try {
    if (auto valid = check_name(name); !valid)
        return valid;
    const auto top = root();
    if (!top)
        return tl::unexpected(top.error());
    const auto path = *top / name;
    const int fd = ::open((path / "lock").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return tl::unexpected(problem{
            fmt::format("there is no lab '{}'; `gaudi-direct lab list` names those there are", name)});
    bool alone = false;
    for (int tries = 0; !alone && tries < 20; ++tries) { // `lab list` and `lab show` hold a lab for a moment
        if (tries > 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        alone = lock(fd, LOCK_EX | LOCK_NB) == 0;
    }
    if (!alone) {
        ::close(fd);
        return tl::unexpected(
            problem{fmt::format("lab '{0}' is in use; end its programs first: `gaudi-direct lab show {0}` "
                                "names those that have a device open",
                                name)});
    }
    remove_lab(path);
    ::close(fd);
    return {};
} catch (const fs::filesystem_error& error) {
    return tl::unexpected(problem{error.what()});
}

} // namespace lab
