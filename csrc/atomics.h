/* C11's atomics. */
#ifndef CTCBIND_ATOMICS_H
#define CTCBIND_ATOMICS_H

#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1935
#error "C11's atomics take Visual Studio 2022, version 17.5 or later"
#endif
#include <stdatomic.h>

#endif
