// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lab {

// The folder of a lab, locked as in use: as long as this object or any duplicate of its descriptor exists, in
// any process, the lab can be neither remade nor cleaned. Its contents:
//
//   lock, description            locked by the processes that use the lab; what the lab has
//   accel/accelN                 the device node (its lock: one opener at a time), command buffers at 1 << 60
//   accel/accel_controlDN        the control node
//   gaudiN/context hbm sram      state of the open context; memory
//   gaudiN/exports/ID            one file per DMA-BUF, see lab/dmabuf.h
//   topology.xml                 where devices and nics are, for hwloc
//   sys/class/infiniband/vhcaN   what a program finds under ibv_device::ibdev_path: PCI device, NUMA node
//   hca/                         the virtual nics: one file per process, see lab/hca/segment.hpp
//   ports                        which of their ports have no link
class folder {
public:
    folder(folder&& other) noexcept;
    folder& operator=(folder&& other) noexcept;
    ~folder();

    // Enters the lab called `name`; makes it first if it does not exist. With `wanted`, a lab of another
    // description is remade if idle and refused if in use; without, the lab is taken as it is.
    static result<folder> enter(std::string_view name, const std::optional<description>& wanted);

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] const lab::description& contents() const { return contents_; }

    [[nodiscard]] std::filesystem::path device_node(unsigned index) const;
    [[nodiscard]] std::filesystem::path control_node(unsigned index) const;
    [[nodiscard]] std::filesystem::path device_folder(unsigned index) const;

private:
    folder(std::filesystem::path path, int lock_fd, description contents)
        : path_(std::move(path)), lock_fd_(lock_fd), contents_(std::move(contents)) {}

    std::filesystem::path path_;
    int lock_fd_ = -1;
    description contents_;
};

// $GAUDI_LAB_ROOT, else a folder of this user on tmpfs. Made with mode 0700; refused if it belongs to another
// user.
[[nodiscard]] result<std::filesystem::path> root();
// $GAUDI_LAB, else "default".
[[nodiscard]] std::string selected_name();
[[nodiscard]] result<void> check_name(std::string_view name);
[[nodiscard]] result<std::vector<std::string>> list();
[[nodiscard]] bool in_use(const std::filesystem::path& lab);
// Removes a lab that no process uses.
[[nodiscard]] result<void> clean(std::string_view name);

} // namespace lab
