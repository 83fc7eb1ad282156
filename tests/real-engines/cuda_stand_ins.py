"""Empty libraries in the place of the CUDA ones that torch from PyPI is linked against.

Run once with an environment's Python after torch was installed without them. The CUDA build of torch does not load when a
library that it names is missing, though a machine without a graphics card never calls one of their functions. So each gets a
library of that name, with the symbols and symbol versions that torch's own libraries ask for. Every function says that there
is no device (cudaErrorNoDevice), so that torch.cuda.is_available() is false. Needs gcc and readelf.
"""

import collections
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100
# A library of the driver, not of the toolkit, is asked for at run time only.
TOOLKIT = re.compile(r"lib(cu|nv|nccl)\w*\.so(\.\d+)*$")
FUNCTION = re.compile(r"_*(cu|nv|nccl)\w*$", re.IGNORECASE)


def readelf(option, file):
    return subprocess.run(["readelf", "-W", option, str(file)], capture_output=True, text=True, check=True).stdout


def dynamic_symbols(file):
    """Name, version ("" for none) and whether it is defined, of every dynamic symbol."""
    for line in readelf("--dyn-syms", file).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit():
            name, _, version = fields[7].replace("@@", "@").partition("@")
            yield name, version, fields[6] != "UND"


def version_owners(file):
    """Symbol version -> library that must have it."""
    owner = None
    for line in readelf("-V", file).splitlines():
        if named := re.search(r"\bFile: (\S+)", line):
            owner = named[1]
        elif version := re.search(r"\bName: (\S+)\s+Flags:", line):
            yield version[1], owner


def build(folder, library, versions, unversioned):
    """Compiles one library: `versions` maps symbol versions to functions, `unversioned` are functions without one."""
    functions = sorted(set().union(unversioned, *versions.values()))
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, "stand_in.c"), pathlib.Path(work, "versions")
        lines = []
        for name in functions:
            # What torch prints must be a text.
            is_text = "String" in name or name.endswith("Name")
            lines.append(
                f'const char *{name}(void) {{ return "no device"; }}' if is_text
                else f"long {name}(void) {{ return {NO_DEVICE}; }}"
            )
        source.write_text("\n".join(lines) + "\n")
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", "-o", str(folder / library)]
        if versions:
            nodes = (f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in sorted(versions.items()))
            script.write_text("\n".join(nodes) + "\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, str(source)], check=True)


def main():
    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib"
    linked = sorted(folder.glob("*.so*"))
    needed, owners, wanted, defined = set(), {}, collections.defaultdict(set), set()
    for file in linked:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("-d", file)))
        owners.update(version_owners(file))
        for name, version, is_defined in dynamic_symbols(file):
            if is_defined:
                defined.add(name)
            else:
                wanted[version].add(name)
    present = {file.name for file in linked}
    missing = sorted(name for name in needed - present if TOOLKIT.match(name) and name != "libcuda.so.1")
    if not missing:
        print("torch finds all of its libraries: no stand-ins are needed")
        return
    loose = {name for name in wanted[""] - defined if FUNCTION.match(name)}
    for library in missing:
        versions = {
            version: wanted[version] for version, owner in owners.items() if owner == library and wanted[version]
        }
        # Symbols without a version are found in any library; they are in the first one that has no versions either.
        takes_loose = loose and not versions
        build(folder, library, versions, loose if takes_loose else set())
        if takes_loose:
            loose = set()
    if loose:
        sys.exit(f"no library takes {len(loose)} functions without a version, such as {sorted(loose)[0]}")
    print(f"{len(missing)} stand-ins in {folder}: {', '.join(missing)}")


if __name__ == "__main__":
    os.environ["LC_ALL"] = "C"
    main()
