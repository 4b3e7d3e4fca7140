"""A Java that can run Spark, and the command lines of Spark's processes, out of the installed pyspark.

In: the environment. Out: `Java`, argument lists. No shell script is involved: what Spark's own scripts work out (class
path, open modules) is worked out here, once, so that a process starts as what it is and dies when it is told to.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.errors import ConfigError

JAVA_MIN = 17                     # what Spark 4 asks for
PACKAGE = "openjdk-17-jre-headless"
VERSION_S = 20.0                  # `java -version` on a busy machine
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_RELEASE = re.compile(r'version "(?P<major>\d+)[^"]*"')

# As org.apache.spark.launcher.JavaModuleOptions has them: Spark reaches into these packages.
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",       # some of those below are of later Javas
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True)
class Java:
    path: str
    build: str                    # everything `java -version` said: another build cannot use our class archive


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """JAVA_HOME's, else the first on PATH. ConfigError with the remedy: there is none, or it is too old."""
    home = environ.get("JAVA_HOME", "")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH"))
    if path is None or not os.access(path, os.X_OK):
        where = f"JAVA_HOME is {home}, which has none" if home else "there is none on PATH"
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer; {where}. Install it (Debian: {PACKAGE}) or set "
                          f"JAVA_HOME")
    try:
        told = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=VERSION_S, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{path} does not run: {error}; install Java (Debian: {PACKAGE}) or set JAVA_HOME") from None
    release = _RELEASE.search(told)
    if release is None or int(release["major"]) < JAVA_MIN:
        said = told.strip().splitlines()[0] if told.strip() else "nothing"
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer; {path} says {said}. Install it (Debian: {PACKAGE}) "
                          f"or set JAVA_HOME")
    return Java(path, told)


def spark_home() -> str:
    """The directory of the installed pyspark, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("pyspark is not installed beside millrace; install it: pip install 'pyspark[connect]'")
    return found.submodule_search_locations[0]


def class_path() -> str:
    """Every jar, in an order that does not change: a class archive is bound to it."""
    jars = os.path.join(spark_home(), "jars")
    return os.pathsep.join(sorted(os.path.join(jars, name) for name in os.listdir(jars) if name.endswith(".jar")))


def fingerprint(java: Java, path: str) -> str:
    """Names what a class archive is bound to: the build of Java, and each jar with its size and time."""
    digest = hashlib.sha256(java.build.encode())
    for jar in path.split(os.pathsep):
        stat = os.stat(jar)
        digest.update(f"{jar}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def argument_file(arguments: list[str]) -> str:
    """Text of a Java argument file (`java @file`): 280 jars do not belong on a command line."""
    return "".join('"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for argument in arguments)
