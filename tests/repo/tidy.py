#!/usr/bin/env python3
"""Runs clang-tidy's checks (.clang-tidy) and clang's warnings over the project's C++ files; any finding is an error.

  tidy.py CLANGD FOLDER [FILE...]     FOLDER holds a compile_commands.json made without g++'s precompiled headers

The checks run inside clangd, which looks only at the file itself: clang-tidy walks through every declaration of the
headers too, which costs 40 s a file that includes LibTorch against 9 s here. Headers are therefore files of their own
in this list. Not covered: clang's static analyzer, which clangd does not run.

What was found clean is remembered in FOLDER/clean by the hash of the file, of the project's headers that it includes,
of its compile command and of the configuration, so that a second run looks only at what changed.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys

GCC_ONLY = {"-Wno-restrict", "-Wno-maybe-uninitialized", "-Winvalid-pch"}
# nn::Hooked's forward overrides that of a class whose own is virtual, and cannot say so for all the others.
EXTRA = ["-Wno-unknown-warning-option", "-Wno-pragma-once-outside-header", "-Wno-inconsistent-missing-override"]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def project_files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc"],
                            check=True, capture_output=True, text=True).stdout.split()
    return sorted(path for path in listed if os.path.exists(path) and not path.startswith("tests/consumer/"))


def commands(folder):
    """The compile command of each source, as clang takes it."""
    root = os.getcwd()
    found = {}
    for entry in json.loads(read(os.path.join(folder, "compile_commands.json"))):
        words = shlex.split(entry["command"])
        compiler = next(i for i, word in enumerate(words) if re.search(r"(^|/)(c\+\+|g\+\+)[^/]*$", word))
        words = ["clang++"] + [word for word in words[compiler + 1:] if word not in GCC_ONLY] + EXTRA
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
        found.setdefault(path, (entry["directory"], words))
    return found


def with_headers(files, found):
    """Headers are compiled as the source of the same name is, or as one that includes them (of the same folder, if there
    is one), or as any of the same folder."""
    result = dict(found)
    for header in (path for path in files if path.endswith(".h")):
        folder = os.path.dirname(header)
        includers = [path for path in files if path in found and f'#include "{header}"' in read(path)]
        candidates = [header[:-2] + ".cc"] + sorted(includers, key=lambda path: os.path.dirname(path) != folder)
        candidates += [path for path in sorted(found) if os.path.dirname(path) == folder]
        for candidate in candidates:
            if candidate in found:
                directory, words = found[candidate]
                result[header] = (directory, [header if os.path.basename(w) == os.path.basename(candidate) else w
                                              for w in words[:-1]] + EXTRA[-1:])
                break
    return result


def project_includes(path, seen):
    if path in seen or not os.path.exists(path):
        return seen
    seen.add(path)
    for included in INCLUDE.findall(read(path)):
        project_includes(included, seen)
    return seen


def key_of(path, words, configuration):
    digest = hashlib.sha256(configuration.encode())
    digest.update("\0".join([path] + words).encode())
    for part in sorted(project_includes(path, set())):
        digest.update(read(part).encode())
    return digest.hexdigest()


def check(clangd, database, path):
    run = subprocess.run([clangd, f"--check={os.path.abspath(path)}", "--check-locations=0", "--log=error",
                          f"--compile-commands-dir={database}"], capture_output=True, text=True)
    if run.returncode == 0:
        return []
    findings = []
    for line in run.stderr.splitlines():
        match = re.match(r"E\[[^]]*\] \[([^]]*)\] Line (\d+): (.*)", line)
        if match:
            findings.append(f"{path}:{match[2]}: {match[3]} [{match[1]}]")
    return findings or [f"{path}: clangd ended with {run.returncode}: {run.stderr.strip()[-400:]}"]


def main():
    clangd, folder, only = sys.argv[1], sys.argv[2], sys.argv[3:]
    files = project_files()
    table = with_headers(files, commands(folder))
    database, clean = os.path.join(folder, "clang"), os.path.join(folder, "clean")
    os.makedirs(database, exist_ok=True)
    os.makedirs(clean, exist_ok=True)
    with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as out:
        json.dump([{"directory": directory, "file": os.path.abspath(path), "arguments": words}
                   for path, (directory, words) in table.items()], out)
    version = subprocess.run([clangd, "--version"], check=True, capture_output=True, text=True).stdout
    configuration = version + read(".clang-tidy") + read(__file__)
    keys = {path: key_of(path, table[path][1], configuration) for path in only or files if path in table}
    known = set(os.listdir(clean))
    # The expensive ones first, so that the cores end together.
    todo = sorted((path for path in keys if keys[path] not in known),
                  key=lambda path: ("torch" not in " ".join(table[path][1]), path.endswith(".h"), path))
    for path in sorted(set(only or files) - set(keys)):
        print(f"{path}: in no target, not checked")
    all_findings = []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MOONSHARD_JOBS", os.cpu_count()))) as pool:
        futures = {pool.submit(check, clangd, database, path): path for path in todo}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            path, findings = futures[future], future.result()
            all_findings += findings
            print("\n".join([f"[{done}/{len(todo)}] {path}"] + findings), flush=True)
            if not findings:
                open(os.path.join(clean, keys[path]), "w", encoding="utf-8").close()
    if not only:
        for stale in known - set(keys.values()):
            os.remove(os.path.join(clean, stale))
    print("\n".join(sorted(all_findings)))
    print(f"{len(keys)} files, {len(todo)} looked at, {len(all_findings)} findings")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
