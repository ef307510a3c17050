#!/usr/bin/env python3
"""Runs clang-tidy's checks (.clang-tidy) and clang's warnings over the project's C++ files; any finding is an error.

  tidy.py CLANGD DIRECTORY [FILE...]     DIRECTORY holds a compile_commands.json made without g++'s precompiled headers

The checks run inside clangd, which looks only at the file itself: clang-tidy walks through every declaration of the
headers too, which costs 40 s a file that includes LibTorch. What remains is reading those headers, and that is shared:
the files of one directory that are compiled alike, headers included, are merged into one (a bundle: the includes of all
at its top, each once, then the files without theirs), and findings are mapped back to file and line. A bundle that does
not compile as one (two files with helpers of one name) is checked file by file. Not covered: clang's static analyzer,
which clangd does not run.

A bundle that was found clean is remembered by the hash of its text, of the project's headers that it includes, of its
compile command, of the configuration and of LibTorch's version, so that a second run, in this checkout or another, looks
only at what changed. The hashes are in ~/.cache/moonshard/lint ($XDG_CACHE_HOME), or in DIRECTORY where there is no home.
"""
import collections
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time

GCC_ONLY = {"-Wno-restrict", "-Wno-maybe-uninitialized", "-Winvalid-pch"}
# nn::Hooked's forward overrides that of a class whose own is virtual, and cannot say so for all the others.
EXTRA = ["-Wno-unknown-warning-option", "-Wno-pragma-once-outside-header", "-Wno-inconsistent-missing-override",
         "-Wno-unused-const-variable"]
INCLUDE = re.compile(r'^#include ["<]([^">]+)[">]')
MOST_FILES = 24  # of a bundle: what one process checks while the other cores have work


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def project_files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc"],
                            check=True, capture_output=True, text=True).stdout.split()
    return sorted(path for path in listed if os.path.exists(path) and not path.startswith("tests/consumer/"))


def commands(directory):
    """The compile command of each source, as clang takes it, without the source's own name."""
    root = os.getcwd()
    found = {}
    for entry in json.loads(read(os.path.join(directory, "compile_commands.json"))):
        words = shlex.split(entry["command"])
        compiler = next(i for i, word in enumerate(words) if re.search(r"(^|/)(c\+\+|g\+\+)[^/]*$", word))
        kept, skip = [], False
        for word in words[compiler + 1:]:
            if skip or word in GCC_ONLY or word == "-c" or word.endswith(os.path.basename(entry["file"])):
                skip = False
                continue
            skip = word == "-o"
            if not skip:
                kept.append(word)
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), root)
        found.setdefault(path, (entry["directory"], ["clang++"] + kept + EXTRA))
    return found


def included(path):
    return [match[1] for match in map(INCLUDE.match, read(path).splitlines()) if match and os.path.exists(match[1])]


def reachable(path, seen):
    if path not in seen:
        seen.add(path)
        for header in included(path):
            reachable(header, seen)
    return seen


class Bundle:
    """Files that are checked as one: their text, and where each of its lines comes from. A header of the bundle is an
    empty file for whatever else includes it (shadow), so its text stands before the includes that need it."""

    def __init__(self, files, command):
        self.files, self.command = sorted(files, key=lambda path: (path.endswith(".cc"), path)), command
        self.own, self.lines, added, there = set(files), [], set(), set()

        def add(path):
            if path in added:
                return
            added.add(path)
            body, hoist, kept, depth, once = [], [], {}, 0, set()
            defined = False
            for number, line in enumerate(read(path).splitlines(), 1):
                match = INCLUDE.match(line)
                depth += line.startswith("#if") - line.startswith("#endif")
                defined = defined or line.startswith("#define")
                if match and match[1] in once:
                    body.append((f"#error duplicate include {match[0]}", path, number))
                elif match and depth == 0 and not defined:  # what follows a #define may depend on it
                    hoist.append((match[1], line, number))
                    body.append(("", path, number))
                else:
                    gone = line == "#pragma once" or (match and match[1] in self.own)
                    if match and not gone:
                        kept[len(body)] = match[1], depth
                    body.append(("" if gone else line, path, number))
                if match:
                    once.add(match[1])
            # Ours first: LibTorch's and Catch's headers define macros.
            for header, line, number in sorted(hoist, key=lambda row: (not row[1].startswith('#include "'), row[0])):
                for inner in sorted(reachable(header, set()) & self.own) if os.path.exists(header) else []:
                    add(inner)
                if header not in self.own and header not in there:
                    there.add(header)
                    self.lines.append((line, path, number))
            for index, (header, depth) in kept.items():
                if header in there:
                    body[index] = ("",) + body[index][1:]
                elif depth == 0:
                    there.add(header)
            self.lines += body

        for path in self.files:
            add(path)
        self.text = "\n".join(line for line, _, _ in self.lines) + "\n"

    def where(self, line):
        _, path, number = self.lines[min(line, len(self.lines)) - 1]
        return f"{path}:{number}"

    def key(self, configuration):
        digest = hashlib.sha256(configuration.encode())
        # Relative to the checkout, which may be another.
        digest.update("\0".join(word.replace(os.getcwd(), ".") for word in self.command[1]).encode())
        digest.update(self.text.encode())
        for header in sorted(set().union(*(reachable(path, set()) for path in self.files))):
            digest.update(read(header).encode())
        return digest.hexdigest()


def bundles(files, found):
    """One for each directory and compile command; a header goes with the sources of its directory where one of them
    includes it, else it is compiled as a file that includes it is, by preference one that sees LibTorch."""
    groups, headers = collections.defaultdict(list), []
    for path in files:
        if path in found:
            directory, words = found[path]
            groups[(os.path.dirname(path), directory, tuple(words))].append(path)
        elif path.endswith(".h"):
            headers.append(path)
    by_directory = {}
    for key in groups:
        by_directory.setdefault(key[0], key)
    parts = []
    users = collections.defaultdict(list)
    for path in found:
        for header in reachable(path, set()) if os.path.exists(path) else ():
            users[header].append(path)
    for header in headers:
        key = by_directory.get(os.path.dirname(header))
        if key is None or not any(os.path.dirname(user) == os.path.dirname(header) for user in users[header]):
            user = min(users[header], default=None,
                       key=lambda path: ("/torch/include" not in " ".join(found[path][1]), path.startswith("tests/bench/"), path))
            if user is None:
                print(f"{header}: in no target, not checked")
                continue
            key = (os.path.dirname(header),) + (found[user][0], tuple(found[user][1]))
        groups[key].append(header)
    for (_, directory, words), members in sorted(groups.items()):
        members.sort()
        size = -(-len(members) // -(-len(members) // MOST_FILES))  # parts of equal size
        for begin in range(0, len(members), size):
            parts.append(Bundle(members[begin:begin + size], (directory, list(words))))
    return parts


def run_clangd(clangd, database, bundle):
    """Findings, and whether one is an error of the compiler."""
    path = os.path.join(os.path.abspath(database), bundle.name)
    run = subprocess.run([clangd, f"--check={path}", "--check-locations=0", "--log=error",
                          f"--compile-commands-dir={database}"], capture_output=True, text=True)
    if run.returncode == 0:
        return []
    findings = []
    for line in run.stderr.splitlines():
        match = re.match(r"E\[[^]]*\] \[([^]]*)\] Line (\d+): (.*)", line)
        if match:
            findings.append((match[1], f"{bundle.where(int(match[2]))}: {match[3]} [{match[1]}]"))
    return findings or [("clangd", f"{bundle.files}: clangd ended with {run.returncode}: {run.stderr.strip()[-400:]}")]


def is_tidy(code):
    return "-" in code and code != "clangd"


def check(clangd, database, bundle):
    findings = run_clangd(clangd, database, bundle)
    if len(bundle.files) > 1 and any(not is_tidy(code) for code, _ in findings):
        findings = [finding for single in bundle.singles for finding in run_clangd(clangd, database, single)]
    return sorted({text for _, text in findings})


def write_database(database, parts):
    entries = []
    for number, bundle in enumerate(parts):
        bundle.singles = [Bundle([path], bundle.command) for path in bundle.files] if len(bundle.files) > 1 else []
        for index, one in enumerate([bundle] + bundle.singles):
            one.name = f"{number:03d}_{index:02d}_{os.path.basename(one.files[-1]).split('.')[0]}.cc"
            with open(os.path.join(database, one.name), "w", encoding="utf-8") as out:
                out.write(one.text)
            directory, words = one.command
            path = os.path.join(os.path.abspath(database), one.name)
            shadow = os.path.join(os.path.abspath(database), "shadow", one.name)
            for header in (header for header in one.files if header.endswith(".h")):
                os.makedirs(os.path.join(shadow, os.path.dirname(header)), exist_ok=True)
                with open(os.path.join(shadow, header), "w", encoding="utf-8") as out:
                    out.write("#pragma once\n")
            entries.append({"directory": directory, "file": path, "arguments": words[:1] + ["-I", shadow] + words[1:] + ["-c", path]})
    with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as out:
        json.dump(entries, out)


def cache_directory(directory):
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and os.path.join(os.environ["HOME"], ".cache"))
    path = os.path.join(base, "moonshard", "lint") if base else os.path.join(directory, "clean")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        path = os.path.join(directory, "clean")
        os.makedirs(path, exist_ok=True)
    return path


def forget_old(clean):
    """Records that no run has used for a month."""
    for entry in os.scandir(clean):
        if entry.stat().st_mtime < time.time() - 30 * 24 * 3600:
            os.remove(entry.path)


def torch_version(found):
    """The text of version.h of the LibTorch in the include paths, or nothing."""
    for word in sorted({word for _, words in found.values() for word in words if word.endswith("/torch/include")}):
        if os.path.exists(os.path.join(word, "torch", "version.h")):
            return read(os.path.join(word, "torch", "version.h"))
    return ""


def main():
    clangd, directory, only = sys.argv[1], sys.argv[2], sys.argv[3:]
    files = project_files()
    # Beside .clang-tidy's root, so that clangd finds the configuration.
    database, clean = os.path.join(directory, "bundles"), cache_directory(directory)
    os.makedirs(database, exist_ok=True)
    found = commands(directory)
    parts = bundles(files, found)
    checked = {path for bundle in parts for path in bundle.files}
    for path in sorted(set(only or files) - checked):
        print(f"{path}: in no target, not checked")
    if only:
        parts = [bundle for bundle in parts if set(bundle.files) & set(only)]
    write_database(database, parts)
    version = subprocess.run([clangd, "--version"], check=True, capture_output=True, text=True).stdout
    configuration = version + read(".clang-tidy") + read(__file__) + torch_version(found)
    keys = {bundle.name: bundle.key(configuration) for bundle in parts}
    known = set(os.listdir(clean))
    for key in known & set(keys.values()):
        os.utime(os.path.join(clean, key))
    # The expensive ones first, so that the cores end together.
    todo = sorted((bundle for bundle in parts if keys[bundle.name] not in known),
                  key=lambda bundle: ("torch" not in " ".join(bundle.command[1]), -len(bundle.text)))
    all_findings = []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("MOONSHARD_JOBS", os.cpu_count()))) as pool:
        futures = {pool.submit(check, clangd, database, bundle): bundle for bundle in todo}
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            bundle, findings = futures[future], future.result()
            all_findings += findings
            print("\n".join([f"[{done}/{len(todo)}] {os.path.dirname(bundle.files[0])}, {len(bundle.files)} files"] + findings),
                  flush=True)
            if not findings:
                open(os.path.join(clean, keys[bundle.name]), "w", encoding="utf-8").close()
    forget_old(clean)
    print("\n".join(sorted(all_findings)))
    print(f"{len(checked)} files in {len(parts)} bundles, {len(todo)} looked at, {len(all_findings)} findings")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
