// Names that depend on the instruction set for which a file is compiled.
#pragma once

#define OPDUMP_JOIN_(a, b) a##b
#define OPDUMP_JOIN(a, b) OPDUMP_JOIN_(a, b)
