#include "fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool fault_set(struct fault *fault, const char *code, const char *format, ...)
{
    size_t room = sizeof fault->text, at = (size_t)snprintf(fault->text, room, "%s ", code);
    if (at < room) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(fault->text + at, room - at, format, arguments);
        va_end(arguments);
    }
    /* names come from callers: a line break in one would end the reply, and half a character is no text */
    for (char *c = fault->text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return false;
}
