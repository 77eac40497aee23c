// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "lab/world/description.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lab {

// A lab's folder, held in use: as long as this object or any duplicate of its descriptor lives, in any
// process, nobody can remake or clean the lab. What lies in it:
//
//   lock, description            who uses it; what it consists of
//   accel/accelN                 the device node (its lock is the single opener), command buffers at 1 << 60
//   accel/accel_controlDN        the control node
//   gaudiN/context hbm sram      state of the open context; memory
//   gaudiN/exports/ID            one file a DMA-BUF, see lab/dmabuf.h
//   topology.xml                 where the cards sit, for hwloc
//   sys/class/infiniband/vhcaN   what a program finds under ibv_device::ibdev_path: PCI device, NUMA node
//   hca/                         the virtual NICs: one file a process, see lab/hca/segment.hpp
//   ports                        which of their ports have no link
class folder {
public:
    folder(folder&& other) noexcept;
    folder& operator=(folder&& other) noexcept;
    ~folder();

    // Enters the lab called `name`, making it first where it does not exist. With `wanted`, a lab of another
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

// $GAUDI_LAB_ROOT, else a folder of this user's on tmpfs. Made with mode 0700; refused if it belongs to
// somebody else.
[[nodiscard]] result<std::filesystem::path> root();
// $GAUDI_LAB, else "default".
[[nodiscard]] std::string selected_name();
[[nodiscard]] result<void> check_name(std::string_view name);
[[nodiscard]] result<std::vector<std::string>> list();
[[nodiscard]] bool in_use(const std::filesystem::path& lab);
// Removes a lab that nobody uses.
[[nodiscard]] result<void> clean(std::string_view name);

} // namespace lab
